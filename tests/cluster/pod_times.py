"""When each pod of a namespace was made, bound to a node and ready, as a watch sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.background import repeated
from tests.cluster.control_plane import ControlPlane

from stoker_cluster.status import is_ready

__all__ = ["pod_times"]


@contextmanager
def pod_times(plane: ControlPlane, namespace: str) -> Iterator[Mapping[str, dict[str, float]]]:
    """Watch while the body runs: the first time of `made`, `bound` and `ready` of each pod; monotonic clock."""
    times: dict[str, dict[str, float]] = {}
    path = f"/api/v1/namespaces/{namespace}/pods?watch=true&timeoutSeconds=1"

    def watch() -> None:
        with plane.api.stream("GET", path) as answer:
            for line in answer.iter_lines():
                note(json.loads(line)["object"])

    def note(pod: Any) -> None:
        holds = {"made": True, "bound": "nodeName" in pod["spec"], "ready": is_ready(pod)}
        for name in (name for name, held in holds.items() if held):
            times.setdefault(pod["metadata"]["name"], {}).setdefault(name, time.monotonic())

    with repeated(watch):
        yield times
