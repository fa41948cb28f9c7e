"""Waiting for the pods of a service, and how many of them could score at each moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.background import repeated

from stoker_cluster.access import Cluster
from stoker_cluster.cluster_service import ClusterService

__all__ = ["await_ready", "counted"]

# It ends as soon as they are: this is for machines that do much else.
_WITHIN_S: Final = 420.0


def await_ready(service: ClusterService) -> None:
    """Wait until all pods of a service can score."""
    status = service.await_ready(_say, _WITHIN_S)
    assert status.state == "Healthy", status


@contextmanager
def counted(cluster: Cluster, service: ClusterService) -> Iterator[list[int]]:
    """How many pods could score after each change of one, while the body runs."""
    counts: list[int] = []

    def count() -> None:
        events = cluster.watch("v1", "Pod", service.namespace, within_s=1)
        counts.extend(len(service.ready_pods()) for _ in events)

    with repeated(count):
        yield counts


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}")
