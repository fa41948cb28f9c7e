"""Notifies the access log and the tracer when the requests of a frontend are answered.

Where requests are watched, their calls are of classes that notify when they are answered; elsewhere nothing is
checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.gateway.scoring.watched_calls import WatchedCall, Watcher

if TYPE_CHECKING:
    from stoker.control.frontend_rules import Sampling, ServerRules
    from stoker.errors import StokerError
    from stoker.gateway.http.request_ids import RequestIds
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.service import Service

__all__ = ["Watch", "watch_of"]


class Watch:
    """The watchers of one frontend.

    Args:
        watchers: The watchers; at least one.
    """

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)
        self._kinds: dict[type[Call], type[Call]] = {}

    def over(self, service: Service) -> None:
        """Watch the requests to a service; to be called again when another replica is attached."""
        kind = service.call_type
        if issubclass(kind, WatchedCall):
            return
        if kind not in self._kinds:
            watched = type(f"_Watched{kind.__name__}", (WatchedCall, kind), {"watchers": self._watchers})
            self._kinds[kind] = watched
        service.call_type = self._kinds[kind]

    def refused(self, service: Service, ids: RequestIds, error: StokerError) -> None:
        """Notify of a request to a service that is refused before it is scored."""
        for watcher in self._watchers:
            watcher.refused(service, ids, error)

    def sample(self, sampling: Sampling) -> None:
        """Use other sampling settings of traces from now on."""
        for watcher in self._watchers:
            watcher.sample(sampling)

    def close(self) -> None:
        """Close the watchers."""
        for watcher in self._watchers:
            watcher.close()


def watch_of(rules: ServerRules, metrics_fd: int, page: int) -> Watch | None:
    """Return the watchers of a frontend; None if there are none.

    Args:
        rules: The settings that hold for all services.
        metrics_fd: The memory of the metrics.
        page: The frontend's page in it.
    """
    # Not even imported where it is off: that would cost every frontend its memory.
    watchers: list[Watcher] = []
    if rules.access_log_sample:
        from stoker.gateway.scoring.access_log import AccessLog

        access_log = AccessLog(rules.access_log_sample)
        access_log.start()
        watchers.append(access_log)
    if rules.sampling is not None:
        from stoker.gateway.scoring.tracing import Tracing
        from stoker.metrics.journal import TraceWriter

        watchers.append(Tracing(TraceWriter(metrics_fd, page), rules.sampling))
    return Watch(watchers) if watchers else None
