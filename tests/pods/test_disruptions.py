"""Requests while pods are evicted or killed, and while the API server is away."""

from __future__ import annotations

import os
import signal
import time

from tests.cluster.control_plane import ControlPlane
from tests.cluster.readiness import await_ready
from tests.pods.load import Load
from tests.pods.node import Node
from tests.pods.plans import digits
from tests.pods.service import Record, eventually, place

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService


def restarts(service: ClusterService) -> list[int]:
    """How often each container of each pod was started again."""
    return [one["restartCount"] for pod in service.pods() for one in pod["status"]["containerStatuses"]]


def evict(plane: ControlPlane, namespace: str, name: str) -> int:
    """Ask for the eviction of a pod, as those do who drain a node; returns the status of the answer."""
    content = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
    }
    return plane.api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", json=content).status_code


def test_a_drained_node_loses_a_pod_at_a_time_and_no_request(
    cluster: Cluster, plane: ControlPlane, namespace: str, record: Record
) -> None:
    """The budget refuses an eviction while a pod is away; those who drain ask again until all are gone."""
    list(apply(cluster, digits(namespace, replicas=3)))
    service = ClusterService(cluster, namespace, "digits")
    await_ready(service)
    refused, fewest = 0, 3
    with Load(place(cluster, namespace)) as load:
        left = set(service.ready_pods())
        deadline_s = time.monotonic() + 420
        while left:
            assert time.monotonic() < deadline_s, f"{left} are still there"
            for name in sorted(left):
                status = evict(plane, namespace, name)
                assert status in (201, 429), status
                refused += status == 429
                left -= {name} if status == 201 else set()
            fewest = min(fewest, len(service.ready_pods()))
            time.sleep(0.5)
        await_ready(service)
        load.await_answers(200)
    record("drain", load, f"{refused} evictions refused, fewest ready {fewest}")
    assert load.ledger.broken() == []
    assert refused > 0
    assert fewest == 2


def test_killed_pod_loses_only_its_requests_in_flight(
    cluster: Cluster, machine: Node, namespace: str, record: Record
) -> None:
    """Its callers connect again, to another pod until the node has restarted it."""
    list(apply(cluster, digits(namespace, replicas=2)))
    service = ClusterService(cluster, namespace, "digits")
    await_ready(service)
    container = service.pods()[0]["status"]["containerStatuses"][0]["containerID"].removeprefix(
        "containerd://"
    )
    with Load(place(cluster, namespace), comes_again=True, pause_s=0.01) as load:
        load.await_answers(200)
        process = machine.process_of(container)
        killed_s = time.monotonic()
        os.kill(process, signal.SIGKILL)
        eventually(lambda: sum(restarts(service)) == 1, "the container is started again", within_s=240)
        await_ready(service)
        load.await_answers(200)
    lost = load.ledger.broken()
    record("kill -9", load, f"{len(lost)} lost, {load.refused_connections} connections refused")
    assert len(lost) <= load.callers
    assert [one for one in lost if not one.sent_s <= killed_s + 1] == []
    assert sum(restarts(service)) == 1


def test_all_goes_on_while_the_api_server_is_away(
    cluster: Cluster, plane: ControlPlane, namespace: str, record: Record
) -> None:
    """Pods, their probes and the proxy of the node need nobody; afterwards everything is as it was."""
    list(apply(cluster, digits(namespace, replicas=2)))
    service = ClusterService(cluster, namespace, "digits")
    await_ready(service)
    before = {pod["metadata"]["uid"] for pod in service.pods()}
    with Load(place(cluster, namespace)) as load:
        with plane.away():
            began_s = time.monotonic()
            # For as long as pods are looked at ten times, and the liveness of each at least once.
            eventually(lambda: time.monotonic() > began_s + 20, "it was away", within_s=60)
        eventually(lambda: service.status().state == "Healthy", "it is healthy", within_s=240)
        load.await_answers(200)
    record("no API server", load, f"for {time.monotonic() - began_s:.0f} s")
    assert load.ledger.broken() == []
    assert {pod["metadata"]["uid"] for pod in service.pods()} == before
    assert restarts(service) == [0, 0]
