"""Plans for tests."""

import random
from typing import Any

from stoker.errors import InvalidSettings
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import objects_of


def plan(**fields: Any) -> ClusterPlan:
    """A plan of a model with these fields and the required ones."""
    fields.setdefault("serves", ({"name": "digits", "path": "/models/digits.onnx"},))
    return ClusterPlan(**{"name": "digits", "image": "stoker:1", **fields})


def by_kind(found: ClusterPlan, component: str = "server") -> dict[str, dict[str, Any]]:
    """The objects of a plan by kind: those of the servers and what all share, or those of the router."""
    other = "router" if component == "server" else "server"
    return {
        content["kind"]: content
        for content in objects_of(found)
        if content["metadata"].get("labels", {}).get("app.kubernetes.io/component") != other
    }


def objects(component: str = "server", **fields: Any) -> dict[str, dict[str, Any]]:
    """The objects of that plan by kind."""
    return by_kind(plan(**fields), component)


def pod(**fields: Any) -> dict[str, Any]:
    """The specification of its pods."""
    spec: dict[str, Any] = objects(**fields)["Deployment"]["spec"]["template"]["spec"]
    return spec


VALUES: dict[str, list[Any]] = {
    "name": ["a", "digits", "d" * 40],
    "version_name": ["a", "b"],
    "namespace": ["models"],
    "create_namespace": [True, False],
    "models": [
        "image",
        "pvc://weights/digits/3",
        "pvc://weights",
        f"oci://r/m@sha256:{'0' * 64}",
    ],
    "replicas": [1, 8, 20, 10_000],
    "autoscaler": ["stoker", "hpa", "keda", "none"],
    "min_replicas": [1, 20],
    "max_replicas": [1, 100],
    "cpu_cores": [0.1, 1.75, 64],
    "memory_gb": [0.5, 3.0, 512.001],
    "cpu_cores_limit": [2, 64.5],
    "memory_gb_limit": [0.7, 1024],
    "gpu_resource": ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"],
    "dra": ["gpu.nvidia.com"],
    "gpus": [0, 1, 8],
    "spare_gpus": [0, 1, 17],
    "max_unavailable": [0, 3, "0%", "25%"],
    "collect_to": ["collected"],
    "later_to": ["spool"],
    "grpc": [True, False],
    "service_type": ["ClusterIP", "NodePort", "LoadBalancer"],
    "gateway": ["gateways/main"],
    "hostnames": [("digits.example.com",)],
    "router": [True, False],
    "traffic": [{"a": 20.0, "b": 33.33}],
    "network_policy": [True, False],
    "allow_from": [("monitoring",)],
    "allow_egress": [True, False],
    "pod_monitor": [True, False],
    "image_pull_secrets": [("registry",)],
    "node_selector": [{"pool": "gpus"}],
    "tolerations": [("sku=gpu:NoSchedule", "spot")],
    "runtime_class": ["nvidia"],
    "liveness_initial_delay_s": [310],
    "server": [
        {},
        {"auth": False},
        {"token_auth": True},
        {"timeout_ms": 1500, "metrics_auth": True},
        {"poll_s": 5},
    ],
    "primary_key": ["primary-of-the-tests"],
    "tags": [{"a": "1"}, {"not a label": "ü", "stage": "a b", "": ""}],
    "properties": [{"commit": "1e5"}],
    "description": ["y", "two\nlines", "0x1f"],
}


def _possible(chance: random.Random) -> ClusterPlan:
    """A plan with some of these values, each of which does not contradict those before it."""
    taken: dict[str, Any] = {}
    names = chance.sample(list(VALUES), len(VALUES))
    for name in names:
        value = chance.choice([None, *VALUES[name]])
        if value is None:
            continue
        try:
            plan(**{**taken, name: value})
        except InvalidSettings:
            continue
        taken[name] = value
    return plan(**taken)


PLANS = [_possible(random.Random(seed)) for seed in range(12)]
"""Plans of all kinds, always the same."""
