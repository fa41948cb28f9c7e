"""The sentences about prerequisites of the rendered objects in a cluster."""

from typing import Any

import pytest
from tests.unit.stoker_cluster.plans import objects, plan

from stoker_cluster.prerequisites import list_prerequisites

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "hpa": ({"autoscaler": "hpa"}, "stoker_load"),
    "keda": ({"autoscaler": "keda", "namespace": "ml"}, "namespace keda"),
    "pod monitor": ({"pod_monitor": True}, "Prometheus' operator"),
    "gateway": ({"gateway": "gateways/main"}, "gateways/main"),
    "dra": ({"dra": "gpu.nvidia.com"}, "gpu.nvidia.com"),
    "device plugin": ({"gpus": 1}, "nvidia.com/gpu"),
    "runtime class": ({"runtime_class": "nvidia"}, "RuntimeClass nvidia"),
    "claim of models": ({"models": "pvc://weights/digits"}, "PersistentVolumeClaim weights"),
    "image volume": ({"models": f"oci://r/m@sha256:{'0' * 64}"}, "image volumes"),
    "claim of records": ({"collect_to": "collected"}, "PersistentVolumeClaim collected"),
    "claim of answers": ({"later_to": "spool", "server": {"later_mb": 10}}, "PersistentVolumeClaim spool"),
    "pull secrets": ({"image_pull_secrets": ("a", "b")}, "Secrets a, b"),
}


@pytest.mark.parametrize(("fields", "words"), OPTIONS.values(), ids=OPTIONS)
def test_option_with_a_prerequisite_lists_it(fields: dict[str, Any], words: str) -> None:
    """Each option that needs a prepared cluster has its sentence."""
    assert any(words in line for line in list_prerequisites(plan(**fields)))


def test_plan_without_options_needs_nothing() -> None:
    """A plain service needs nothing beside its objects."""
    assert list(list_prerequisites(plan())) == []


@pytest.mark.parametrize("scraped", [{"pod_monitor": True}, {"autoscaler": "hpa"}])
@pytest.mark.parametrize(
    ("admitted", "is_named"),
    [
        ({}, True),
        ({"allow_from": ("monitoring",)}, False),
        ({"network_policy": False}, False),
        ({"service_type": "LoadBalancer"}, False),
    ],
)
def test_policy_that_keeps_prometheus_out_is_named(
    scraped: dict[str, Any], admitted: dict[str, Any], is_named: bool
) -> None:
    """A plan that is scraped, and whose policy admits its own namespace alone, advises --allow-from."""
    fields = {**scraped, **admitted}
    assert any("--allow-from" in line for line in list_prerequisites(plan(**fields))) is is_named
    policy = objects(**fields).get("NetworkPolicy")
    admits_others = policy is None or any(
        "from" not in rule or any("namespaceSelector" in peer for peer in rule["from"])
        for rule in policy["spec"]["ingress"]
    )
    assert admits_others is not is_named
