"""Notifies the access log and the tracer when the requests of a frontend are answered.

Where requests are watched, their calls are of classes that notify when they are answered; elsewhere nothing is
checked.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stoker.gateway.http.request_ids import TRACEPARENT, RequestIds
from stoker.gateway.scoring.call import Call

if TYPE_CHECKING:
    from stoker.control.frontend_rules import Sampling
    from stoker.errors import StokerError
    from stoker.gateway.http.request_ids import SpanContext
    from stoker.gateway.scoring.call import ServiceBase
    from stoker.wire.script_requests import RequestHead

__all__ = ["Watch", "WatchedCall", "Watcher", "traced_head"]

_CLIENT_GONE: Final = 499


class Watcher(ABC):
    """Is notified of some requests, on the event loop.

    Attributes:
        sees_steps: Whether also of the steps of requests to pipelines.
    """

    sees_steps: ClassVar[bool] = False

    @abstractmethod
    def begin(self, call: WatchedCall, ids: RequestIds | None) -> bool:
        """Whether it wants to be notified of a request with these ids; None for a request without ids."""

    @abstractmethod
    def note(self, call: WatchedCall, status: int) -> None:
        """Record an answered request."""

    @abstractmethod
    def refused(self, service: ServiceBase, ids: RequestIds, error: StokerError) -> None:
        """Record a request that is refused before it is scored, if it wants to be notified of it."""

    def sample(self, sampling: Sampling) -> None:  # noqa: B027  # most have a share of their own
        """Use other sampling settings from now on, if it is the tracer."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Stop; no further notifications come."""


class WatchedCall(Call):
    """A call that notifies watchers when it is answered; without slots, so that it can be mixed into other classes.

    Attributes:
        code: The code of its error; empty if there is none.
        span: Its span, if it is traced.
    """

    watchers: ClassVar[tuple[Watcher, ...]]
    code = ""
    span: SpanContext | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        told: tuple[Watcher, ...] = ()
        # Faster than a comprehension; this runs once per request.
        for watcher in self.watchers:
            if watcher.begin(self, self._ids):
                told += (watcher,)
        self._told = told
        if told and self._ids is None:
            # Otherwise the answer would get ids that the watchers do not know.
            self._ids = RequestIds()

    @property
    def was_run(self) -> bool:
        """Whether its times on a device are known, and belong to its answer."""
        return not self.code and hasattr(self, "finished_ns")

    def refuse(self, error: StokerError) -> None:
        """Answer with an error."""
        self.code = error.code
        super().refuse(error)

    def abandon(self) -> None:
        """The caller has gone: rows that have not started will not run."""
        if self._told and self.wanted:
            self._tell(_CLIENT_GONE)
        super().abandon()

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Answer the caller, then notify the watchers."""
        tells = self._told and self.wanted
        super().answer(status, lines, body)
        if tells:
            self._tell(status)

    def _tell(self, status: int) -> None:
        for watcher in self._told:
            watcher.note(self, status)


def traced_head(call: Call, head: RequestHead) -> RequestHead:
    """Return the head that a script sees: with the request's span as the parent of the script's spans."""
    if not isinstance(call, WatchedCall) or call.span is None:
        return head
    name, traceparent = TRACEPARENT.decode(), call.span.traceparent.decode()
    others = [pair for pair in head.headers if pair[0].lower() != name]
    return dataclasses.replace(head, headers=[*others, (name, traceparent)])


class Watch:
    """The watchers of one frontend."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)
        self._kinds: dict[type[Call], type[Call]] = {}

    def over(self, service: ServiceBase) -> None:
        """Watch the requests to a service; to be called again when another replica is attached."""
        kind = service.call_type
        if issubclass(kind, WatchedCall):
            return
        if kind not in self._kinds:
            watched = type(f"_Watched{kind.__name__}", (WatchedCall, kind), {"watchers": self._watchers})
            self._kinds[kind] = watched
        service.call_type = self._kinds[kind]

    def refused(self, service: ServiceBase, ids: RequestIds, error: StokerError) -> None:
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
