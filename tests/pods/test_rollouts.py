"""Pods are replaced and taken away under load, and no request is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.pods.load import Load
from tests.pods.plans import digits
from tests.pods.service import Record, answered_by, await_ready, eventually, place

from stoker.cluster.access import Cluster
from stoker.cluster.applying import apply
from stoker.cluster.service import ClusterService


@contextmanager
def counted(cluster: Cluster, service: ClusterService) -> Iterator[list[int]]:
    """How many pods could score after each change of one, while the body runs."""
    counts: list[int] = []
    ended = threading.Event()

    def count() -> None:
        while not ended.is_set():
            events = cluster.watch("v1", "Pod", service.namespace, within_s=1)
            counts.extend(len(service.ready_pods()) for _ in events)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()


def test_eight_pods_on_eight_gpus_change_their_image_without_a_lost_request(
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
    """They finish what they have, and those that stay are the same ones."""
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


def test_new_pods_get_their_share_of_callers_who_keep_their_connections(
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
