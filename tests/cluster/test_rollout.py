"""Rollouts on exactly as many GPUs as pods, by real controllers and a real scheduler.

That no request is lost is not shown here: the pods are simulated.
"""

from __future__ import annotations

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour
from tests.cluster.plans import digits
from tests.cluster.readiness import await_ready, counted

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService


def test_eight_pods_on_eight_gpus_are_replaced_one_by_one(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """There is no GPU to spare: a pod goes before its successor comes, seven can score all the time, and it ends."""
    control_plane.nodes.behaviours |= {"old:1": Behaviour(end_s=0.2), "new:1": Behaviour(start_s=0.2)}
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, image="old:1", replicas=8)))
    await_ready(service)
    before = {pod["metadata"]["uid"] for pod in service.pods()}
    with counted(cluster, service) as counts:
        list(apply(cluster, digits(namespace, image="new:1", replicas=8)))
        await_ready(service)
    pods = service.pods()
    assert len(pods) == 8
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in pods)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"new:1"}
    assert (min(counts), max(counts)) == (7, 8)


def test_new_model_that_does_not_start_costs_one_pod(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """The rollout stops at the first pod; the plan of before, applied again, mends it."""
    control_plane.nodes.behaviours["broken:1"] = Behaviour(waits="CrashLoopBackOff", message="back-off 10s")
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, replicas=8)))
    await_ready(service)
    before = {pod["metadata"]["uid"] for pod in service.pods()}
    list(apply(cluster, digits(namespace, image="broken:1", replicas=8)))
    failed = service.await_ready(print, 420)
    assert (failed.state, failed.error) == (
        "Failed",
        {"code": "CrashLoopBackOff", "message": "back-off 10s"},
    )
    assert len(service.ready_pods()) == 7
    assert len(before & {pod["metadata"]["uid"] for pod in service.pods()}) == 7
    list(apply(cluster, digits(namespace, replicas=8)))
    await_ready(service)


def test_fewer_pods_are_taken_away_at_once_and_more_come_at_once(cluster: Cluster, namespace: str) -> None:
    """Scaling makes no new pods of those that stay."""
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, replicas=8)))
    await_ready(service)
    before = {pod["metadata"]["uid"] for pod in service.pods()}
    list(apply(cluster, digits(namespace, replicas=2)))
    await_ready(service)
    kept = {pod["metadata"]["uid"] for pod in service.pods() if "deletionTimestamp" not in pod["metadata"]}
    assert len(kept) == 2
    assert kept < before
    list(apply(cluster, digits(namespace, replicas=8)))
    await_ready(service)
    assert kept < {pod["metadata"]["uid"] for pod in service.pods()}
