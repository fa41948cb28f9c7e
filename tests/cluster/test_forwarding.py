"""A port that leads to the pods: through a real API server to a simulated node, and from that to a server here."""

from __future__ import annotations

import httpx
import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour
from tests.cluster.plans import digits
from tests.cluster.readiness import await_ready

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.forwarding import forwarding


@pytest.fixture
def service(cluster: Cluster, control_plane: ControlPlane, namespace: str, echo: Behaviour) -> ClusterService:
    """A service whose two pods are one server of this machine."""
    control_plane.nodes.behaviours["echo:1"] = echo
    list(apply(cluster, digits(namespace, image="echo:1", replicas=2)))
    found = ClusterService(cluster, namespace, "digits")
    await_ready(found)
    return found


def test_bodies_and_keys_reach_the_pods_and_answers_come_back(
    cluster: Cluster, service: ClusterService
) -> None:
    """Of any size, several on one connection, and several connections at once; the key is not the API server's."""
    messages: list[str] = []
    headers = {"Authorization": "Bearer of-the-service"}
    with forwarding(cluster, service, 0, messages.append) as port:
        uri = f"http://127.0.0.1:{port}/api/v1/service/digits/score"
        with httpx.Client(trust_env=False, headers=headers) as one, httpx.Client(trust_env=False) as other:
            for size in (1, 200, 70_000, 1_000_000):
                body = bytes(size)
                answer = one.post(uri, content=body)
                assert (answer.content, answer.headers["X-Key"]) == (body, "Bearer of-the-service")
                assert other.post(uri, content=body, headers={"Authorization": "-"}).content == body
    assert messages == []
    with pytest.raises(httpx.ConnectError):
        httpx.post(uri, content=b"", trust_env=False)


def test_connection_without_a_ready_pod_ends_with_a_message(cluster: Cluster, namespace: str) -> None:
    """Callers do not wait."""
    messages: list[str] = []
    service = ClusterService(cluster, namespace, "absent")
    with forwarding(cluster, service, 0, messages.append) as port, pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{port}", content=b"", trust_env=False)
    assert messages == ["no pod of absent can score now"]
