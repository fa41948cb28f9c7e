"""What is known of applying without a cluster; tests/cluster has the rest, against a real API server."""

from __future__ import annotations

from stoker.cluster.applying import KINDS
from stoker.cluster.plan import ClusterPlan
from stoker.cluster.render import objects_of

SERVES = ({"path": "/models/digits.onnx", "name": "digits"},)


def test_whatever_a_plan_can_have_is_looked_for_when_it_has_it_no_more() -> None:
    """A kind that is not in the list would stay in the cluster for ever."""
    said = {"name": "digits", "image": "stoker:1", "namespace": "models", "serves": SERVES}
    plans = [
        ClusterPlan(
            **said, dra="gpu.nvidia.com", pod_monitor=True, gateway="gateways/main", create_namespace=True
        ),
        ClusterPlan(**said, autoscaler="hpa", primary_key="a-key-that-is-long-enough"),
        ClusterPlan(**said, autoscaler="keda", router=True),
        ClusterPlan(**said, autoscaler="stoker"),
    ]
    made = {(one["apiVersion"], one["kind"]) for plan in plans for one in objects_of(plan)}
    # The namespace is never deleted; keys are made and deleted apart.
    assert made - set(KINDS) == {("v1", "Namespace"), ("v1", "Secret")}
    assert set(KINDS) <= made
    assert len(set(KINDS)) == len(KINDS)
