"""Applying against a puppet of an API server; tests/cluster has the same against a real one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.stoker_cluster.plans import plan
from tests.unit.stoker_cluster.puppet_api import PuppetApi
from urllib3 import HTTPResponse

from stoker_cluster.applying import KINDS, apply
from stoker_cluster.errors import ClusterError
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import objects_of

SERVES = ({"path": "/models/digits.onnx", "name": "digits"},)


def test_kinds_to_delete_cover_each_kind_of_a_plan() -> None:
    """Objects of a kind that is not in the list would stay in the cluster for ever."""
    fields = {"name": "digits", "image": "stoker:1", "namespace": "models", "serves": SERVES}
    plans = [
        ClusterPlan(
            **fields, dra="gpu.nvidia.com", pod_monitor=True, gateway="gateways/main", create_namespace=True
        ),
        ClusterPlan(**fields, autoscaler="hpa", primary_key="a-key-that-is-long-enough"),
        ClusterPlan(**fields, autoscaler="keda", router=True),
        ClusterPlan(**fields, autoscaler="stoker"),
    ]
    made = {(one["apiVersion"], one["kind"]) for plan in plans for one in objects_of(plan)}
    # The namespace is never deleted; keys are made and deleted apart.
    assert made - set(KINDS) == {("v1", "Namespace"), ("v1", "Secret")}
    assert set(KINDS) <= made
    assert len(set(KINDS)) == len(KINDS)


def test_fields_changed_by_others_are_not_overwritten() -> None:
    """All conflicting fields are named and nothing is applied, unless they are taken over."""
    api = PuppetApi()
    list(apply(api.cluster(), plan()))
    root = "/apis/apps/v1/namespaces/models/deployments/digits"
    service = "/api/v1/namespaces/models/services/digits"
    api.conflicts = {root: [".spec.strategy", ".spec.replicas"], service: [".spec.type"]}
    sent = len(api.sent)
    with pytest.raises(ClusterError) as raised:
        list(apply(api.cluster(), plan(replicas=3)))
    message, *fields = str(raised.value).splitlines()
    assert "take it over with --force-conflicts" in message
    assert sorted(fields) == [
        '  Deployment digits .spec.replicas: conflict with "kubectl"',
        '  Deployment digits .spec.strategy: conflict with "kubectl"',
        '  Service digits .spec.type: conflict with "kubectl"',
    ]
    assert len(api.sent) == sent
    verbs = {
        str(change.reference): change.verb for change in apply(api.cluster(), plan(replicas=3), force=True)
    }
    assert verbs["Deployment digits"] == "changed"
    assert api.objects[root]["spec"]["replicas"] == 3


def test_status_written_by_controllers_meanwhile_is_no_change() -> None:
    """They write a status at any time, and annotations: before the check, within it, and before the apply."""

    class BusyApi(PuppetApi):
        """An API whose controllers write to an object after each request for it."""

        def request(self, method: str, path: str, *, body: Any = None, **options: Any) -> HTTPResponse:
            answer = super().request(method, path, body=body, **options)
            if (found := self.objects.get(path)) is not None:
                writes = int(found.get("status", {}).get("writes", 0)) + 1
                annotations = {"revision": str(min(writes, 3))}
                self.put(
                    found["kind"],
                    found["metadata"]["name"],
                    **{name: value for name, value in found.items() if name not in ("apiVersion", "kind")}
                    | {
                        "status": {"writes": writes},
                        "metadata": {
                            **found["metadata"],
                            "annotations": {**found["metadata"].get("annotations", {}), **annotations},
                            "resourceVersion": f"{path} {writes}",
                        },
                    },
                )
            return answer

    api = BusyApi()
    assert {change.verb for change in apply(api.cluster(), plan())} == {"created"}
    assert {change.verb for change in apply(api.cluster(), plan())} == {"unchanged"}
    changes = {change.reference.kind: change.verb for change in apply(api.cluster(), plan(image="stoker:2"))}
    assert changes["Deployment"] == "changed"
    assert changes["PodDisruptionBudget"] == "unchanged"


def test_a_number_of_pods_is_left_to_an_autoscaler_and_taken_back() -> None:
    """An autoscaler begins with the present number; a later number in the plan is no conflict."""
    api = PuppetApi()
    root = "/apis/apps/v1/namespaces/models/deployments/digits"
    list(apply(api.cluster(), plan(replicas=4, namespace="models")))
    sent = len(api.sent)
    list(apply(api.cluster(), plan(autoscaler="stoker", max_replicas=8, namespace="models")))
    assert api.objects[root]["spec"]["replicas"] == 4
    assert api.sent[sent:].count(("patch", root)) == 2
    api.conflicts = {root: [".spec.replicas"]}
    list(apply(api.cluster(), plan(replicas=2, namespace="models")))
    assert api.objects[root]["spec"]["replicas"] == 2


def test_new_namespace_is_made_without_reading_it_first() -> None:
    """It cannot hold objects yet, so none is checked."""
    api = PuppetApi()
    made = plan(namespace="models", create_namespace=True)
    assert next(iter(apply(api.cluster(), made))).reference.kind == "Namespace"
