"""Pods are replaced and taken away under load, and no request is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from tests.cluster.clock import Clock
from tests.cluster.readiness import await_ready, counted
from tests.pods.load import Load
from tests.pods.plans import digits
from tests.pods.service import Record, answered_by, eventually, place

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.autoscaler import Autoscaler
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.pod_loads import PodLoads
from stoker_cluster.scale_access import ClusterDeployment

COST = "controller.kubernetes.io/pod-deletion-cost"


def test_eight_pods_on_eight_gpus_change_their_image_without_losses(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """Seven can always score, each request has the answer of the old model or of the new one, and it ends."""
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, replicas=8)))
    await_ready(service)
    before = {pod["metadata"]["uid"] for pod in service.pods()}
    with Load(place(cluster, namespace), factors=(2, 3)) as load:
        with counted(cluster, service) as counts:
            list(apply(cluster, digits(namespace, replicas=8, image="stoker:3")))
            await_ready(service)
        load.await_answers(200)
    record("rollout", load, f"fewest ready {min(counts)}")
    assert load.ledger.broken() == []
    assert min(counts) >= 7
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in service.pods())
    assert {one.factor for one in load.answered} == {2, 3}
    assert {one.factor for one in load.answered[-50:]} == {3}


def test_six_of_eight_pods_are_taken_away_without_a_lost_request(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """They finish their requests, and the remaining pods are the same ones as before."""
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, replicas=8)))
    await_ready(service)
    before = set(service.ready_pods())
    with Load(place(cluster, namespace)) as load:
        list(apply(cluster, digits(namespace, replicas=2)))
        await_ready(service)
        eventually(lambda: len(service.pods()) == 2, "the others are gone", within_s=120)
        load.await_answers(200)
    record("scale down", load)
    assert load.ledger.broken() == []
    assert set(service.ready_pods()) < before


async def look_until(own: Autoscaler, clock: Clock, loads: PodLoads, ended: Callable[[], bool]) -> None:
    """Have an autoscaler look once a second of its clock, of which the machine takes less or more."""
    while not ended():
        await own.step()
        clock.now_s += 1
    await loads.close()


def test_the_idlest_pods_go_when_the_autoscaler_wants_fewer(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """It asks the pods, marks those with the least to do, and leaves the two that callers stay with."""
    # A row a batch: what a few callers ask is a share of that, and no rounding.
    serves = ({"path": "/models/digits.onnx", "name": "digits", "threads": 1, "max_batch_rows": 1},)
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, replicas=5, serves=serves)))
    await_ready(service)
    busy = dict(sorted((pod["metadata"]["name"], pod["status"]["podIP"]) for pod in service.pods())[1:3])
    list(apply(cluster, digits(namespace, autoscaler="none", min_replicas=2, max_replicas=5, serves=serves)))
    clock, marked = Clock(), set[str]()
    pods = PodLoads(10.0, clock_s=clock)
    own = Autoscaler("digits", ClusterDeployment(cluster, "digits", namespace), pods, clock_s=clock)
    with contextlib.ExitStack() as callers:
        places = [(place(cluster, namespace), 0.5), *(((address, 8080), 0.1) for address in busy.values())]
        loads = [callers.enter_context(Load(one, callers=4, pause_s=pause_s)) for one, pause_s in places]
        asyncio.run(look_until(own, clock, pods, lambda: two_are_left(service, marked)))
        loads[0].await_answers(20)
    record("the idlest go", loads[0], f"marked {len(marked)} of 5")
    assert [load.ledger.broken() for load in loads] == [[], [], []]
    assert set(service.ready_pods()) == set(busy)
    assert len(marked) == 3
    assert marked.isdisjoint(busy)


def two_are_left(service: ClusterService, marked: set[str]) -> bool:
    """Whether that holds; those that are marked to go are noted."""
    pods = service.pods()
    costs = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}).get(COST) for pod in pods}
    marked |= {name for name, cost in costs.items() if cost is not None and int(cost) < 0}
    return len(pods) == 2


def test_new_pods_get_their_share_of_lasting_connections(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """Connections end after their age, and the next ones are spread over all pods."""
    age_s = 10.0
    server = {"connection_age_s": age_s}
    service = ClusterService(cluster, namespace, "digits")
    list(apply(cluster, digits(namespace, replicas=1, server=server)))
    await_ready(service)
    (old,) = service.ready_pods()
    with Load(place(cluster, namespace), callers=64, pause_s=0.4) as load:
        list(apply(cluster, digits(namespace, replicas=3, server=server)))
        await_ready(service)
        ready_s = time.monotonic()
        eventually(lambda: time.monotonic() > ready_s + 1.5 * age_s, "they have had their time", within_s=60)
        before = answered_by(service)
        load.await_answers(1000)
        after = answered_by(service)
    counts = {name: after[name] - before[name] for name in after}
    record("rebalance", load, f"{counts}")
    assert load.ledger.broken() == []
    assert old in counts
    assert min(counts.values()) >= sum(counts.values()) / len(counts) / 2
