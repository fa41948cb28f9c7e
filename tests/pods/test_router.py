"""The only pod of a service is replaced, and its router too; the requests of that time wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.background import repeated
from tests.cluster.readiness import await_ready
from tests.pods.load import Load
from tests.pods.plans import digits
from tests.pods.service import Record, eventually, place

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.status import is_ready

ROUTERS = "app.kubernetes.io/name=stoker-router,app.kubernetes.io/instance=digits-router"
# As long as a pod may take to come on a machine that does other things too.
PATIENCE_S = 240
ROUTED = {"router": True, "server": {"timeout_ms": PATIENCE_S * 1000}}


def ready_routers(cluster: Cluster, namespace: str) -> list[str]:
    """The pods of the router that are ready."""
    pods = cluster.list("v1", "Pod", namespace, ROUTERS)
    return sorted(pod["metadata"]["uid"] for pod in pods if is_ready(pod))


@contextmanager
def times_without(service: ClusterService) -> Iterator[list[float]]:
    """When there was no pod that could score, while the body runs; monotonic clock."""
    times: list[float] = []

    def look() -> None:
        time.sleep(0.05)
        if not service.ready_pods():
            times.append(time.monotonic())

    with repeated(look):
        yield times


def routed(cluster: Cluster, namespace: str) -> ClusterService:
    """A service of one pod behind two routers, all of which are ready."""
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, **ROUTED)))
    await_ready(service)
    eventually(lambda: len(ready_routers(cluster, namespace)) == 2, "both routers are ready", within_s=200)
    return service


def test_single_pod_behind_a_router_changes_its_image_without_losses(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """They wait for the next pod, as long as that takes, in the router of before."""
    service = routed(cluster, namespace)
    before = ready_routers(cluster, namespace)
    with Load(place(cluster, namespace), factors=(2, 3), patience_s=PATIENCE_S) as load:
        load.await_answers(100)
        with times_without(service) as times:
            list(apply(cluster, digits(namespace, image="stoker:3", **ROUTED)))
            await_ready(service)
        load.await_answers(200)
    record("router, one pod", load, f"no pod for {times[-1] - times[0]:.1f} s")
    assert load.ledger.broken() == []
    assert ready_routers(cluster, namespace) == before
    assert {one.factor for one in load.answered} == {2, 3}
    assert {one.factor for one in load.answered[-50:]} == {3}


def test_router_without_pods_is_replaced_without_losses(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """Requests that wait in the old router reach the new pod, as those of its successor do."""
    service = routed(cluster, namespace)
    before = set(ready_routers(cluster, namespace))
    with Load(place(cluster, namespace), factors=(2, 3), patience_s=PATIENCE_S) as load:
        load.await_answers(100)
        list(apply(cluster, digits(namespace, image="stoker:3", router_image="stoker:3", **ROUTED)))
        await_ready(service)
        eventually(
            lambda: (
                before.isdisjoint(ready_routers(cluster, namespace))
                and len(cluster.list("v1", "Pod", namespace, ROUTERS)) == 2
            ),
            "both routers are others",
            within_s=PATIENCE_S,
        )
        load.await_answers(200)
    record("router and its one pod", load)
    assert load.ledger.broken() == []
    assert {one.factor for one in load.answered[-50:]} == {3}
