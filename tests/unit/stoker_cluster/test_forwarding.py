"""A port that leads to pods; the tunnels to them are pairs of sockets, tests/cluster has those of an API server."""

from __future__ import annotations

import queue
import socket
from dataclasses import dataclass
from typing import Any

import pytest

from stoker_cluster.access import Cluster
from stoker_cluster.forwarding import forwarding
from stoker_cluster.objects.configuration import HTTP_PORT

TIMEOUT_S = 30.0


@dataclass
class Pods:
    """Those of a service, all of which are ready."""

    names: list[str]
    namespace: str = "models"
    instance: str = "digits"

    def ready_pods(self) -> list[str]:
        """Their names."""
        return self.names


class Tunnels:
    """Keeps the far ends of tunnels, in the order in which they were opened."""

    def __init__(self) -> None:
        self.opened: queue.SimpleQueue[tuple[Any, socket.socket]] = queue.SimpleQueue()

    def __call__(self, *place: Any) -> socket.socket:
        near, far = socket.socketpair()
        far.settimeout(TIMEOUT_S)
        self.opened.put((place, far))
        return near

    def cluster(self) -> Cluster:
        """A cluster with these tunnels, without an API."""
        return Cluster(lambda *_, **__: None, "puppet", "models", tunnel=self)


def call(port: int) -> socket.socket:
    """A connection of a caller."""
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def test_connections_go_to_the_ready_pods_in_turn() -> None:
    """Bytes pass in both directions, and either end ends both."""
    tunnels, messages = Tunnels(), list[str]()
    with forwarding(tunnels.cluster(), Pods(["a", "b"]), 0, messages.append) as port:
        for name in "aba":
            with call(port) as caller:
                caller.sendall(b"question")
                place, pod = tunnels.opened.get(timeout=TIMEOUT_S)
                with pod:
                    assert (place, pod.recv(99)) == (("models", name, HTTP_PORT), b"question")
                    pod.sendall(b"answer")
                    assert caller.recv(99) == b"answer"
                    if name == "b":
                        caller.shutdown(socket.SHUT_WR)
                        assert pod.recv(1) == b""
                assert caller.recv(1) == b""
    assert messages == []


def test_connection_without_a_pod_ends_with_a_message() -> None:
    """Callers do not wait when there is no pod or no way to it."""

    def refuse(*_: Any) -> socket.socket:
        raise ConnectionRefusedError("refused")

    messages: list[str] = []
    cluster = Cluster(lambda *_, **__: None, "puppet", "models", tunnel=refuse)
    for pods in (Pods([]), Pods(["a"])):
        with forwarding(cluster, pods, 0, messages.append) as port, call(port) as caller:
            assert caller.recv(1) == b""
    assert messages == ["no pod of digits can score now", "the cluster puppet cannot be asked: refused"]


def test_error_closes_the_port() -> None:
    """An error of the body ends forwarding as its normal end does."""
    ports: list[int] = []

    def fail() -> None:
        with forwarding(Tunnels().cluster(), Pods([]), 0, print) as port:
            ports.append(port)
            with call(port) as caller:
                assert caller.recv(1) == b""
            raise KeyError(port)

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(ConnectionRefusedError), call(ports[0]):
        pass
