"""A service in the cluster of the tests: where callers reach it, and waiting for it."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol

from tests.http.raw_http import request
from tests.pods.load import Load, ask

from stoker_cluster.access import Cluster, Reference
from stoker_cluster.cluster_service import ClusterService

__all__ = ["Record", "answered_by", "eventually", "place", "pod_addresses"]

_ANSWERED: Final = re.compile(r'^stoker_requests_total\{[^}]*status="200"[^}]*\} (\S+)$', re.MULTILINE)


class Record(Protocol):
    """Prints the results for the documentation."""

    def __call__(self, row: str, load: Load, *more: str, since_s: float = 0.0) -> None: ...


def place(cluster: Cluster, namespace: str, name: str = "digits") -> tuple[str, int]:
    """The address of a Service in the cluster, once its node makes that the one of a pod."""
    found = cluster.find(Reference("v1", "Service", namespace, name))
    assert found is not None
    address = found["spec"]["clusterIP"], found["spec"]["ports"][0]["port"]
    # The proxy of the node hears of pods a moment after others see that they are ready.
    eventually(lambda: _connects(address), f"{name} can be reached", within_s=120)
    return address


def _connects(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
        return True
    return False


def eventually(
    holds: Callable[[], object], description: str, *, within_s: float, every_s: float = 0.2
) -> None:
    """Wait until `holds` returns true; fails with the description after `within_s`."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {description}"
        time.sleep(every_s)


def pod_addresses(service: ClusterService) -> list[str]:
    """The addresses of its pods that are ready."""
    ready = set(service.ready_pods())
    return sorted(pod["status"]["podIP"] for pod in service.pods() if pod["metadata"]["name"] in ready)


def answered_by(service: ClusterService) -> dict[str, int]:
    """How many requests each of its pods has answered with 200."""
    return {pod["metadata"]["name"]: _answered(pod["status"]["podIP"]) for pod in service.pods()}


def _answered(address: str) -> int:
    text = ask((address, 8080), request("GET", "/metrics")).body.decode()
    return sum(int(float(count)) for count in _ANSWERED.findall(text))
