"""Calls that tell of themselves when they are answered, and those who are told."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.http.traceparent import TRACEPARENT
from stoker.gateway.scoring.call import Call

if TYPE_CHECKING:
    from stoker.control.frontend_rules import Sampling
    from stoker.errors import StokerError
    from stoker.gateway.http.traceparent import SpanContext
    from stoker.gateway.scoring.call import Scorer
    from stoker.wire.envelope import RequestHead

__all__ = ["WatchedCall", "Watcher", "traced_head"]

_CLIENT_GONE: Final = 499


class Watcher(ABC):
    """One who is told of some requests, on the event loop.

    Attributes:
        sees_steps: Whether also of the steps of requests to pipelines.
    """

    sees_steps: ClassVar[bool] = False

    @abstractmethod
    def begin(self, call: WatchedCall, ids: RequestIds | None) -> bool:
        """Whether it is to be told of a request that has come, with these ids; None if nobody has sent any."""

    @abstractmethod
    def note(self, call: WatchedCall, status: int) -> None:
        """Take note of a request that is answered."""

    @abstractmethod
    def refused(self, service: Scorer, ids: RequestIds, error: StokerError) -> None:
        """Take note of a request to a service that is refused before it is scored, if it is to be told of it."""

    def sample(self, sampling: Sampling) -> None:  # noqa: B027  # most have a share of their own
        """Be told of others from now on, if this is who makes traces."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """End; nobody is told of anything any more."""


class WatchedCall(Call):
    """A call of which some are told when it is answered; without slots, to stand before any other kind.

    Attributes:
        code: The code of the error that it is answered with; empty if there is none.
        span: Its span, if it is traced.
    """

    watchers: ClassVar[tuple[Watcher, ...]]
    code = ""
    span: SpanContext | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        told: tuple[Watcher, ...] = ()
        # Quicker than a comprehension; this runs once a request.
        for watcher in self.watchers:
            if watcher.begin(self, self._ids):
                told += (watcher,)
        self._told = told
        if told and self._ids is None:
            # Else the answer would be given some that nobody knows.
            self._ids = RequestIds()

    @property
    def was_run(self) -> bool:
        """Whether its times on a device are known, and hold for its answer."""
        return not self.code and hasattr(self, "finished_ns")

    def refuse(self, error: StokerError) -> None:
        """Answer with an error."""
        self.code = error.code
        super().refuse(error)

    def abandon(self) -> None:
        """The caller has gone: rows that have not started do not run."""
        if self._told and self.wanted:
            self._tell(_CLIENT_GONE)
        super().abandon()

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Give the caller the answer, and tell of it then."""
        tells = self._told and self.wanted
        super().answer(status, lines, body)
        if tells:
            self._tell(status)

    def _tell(self, status: int) -> None:
        for watcher in self._told:
            watcher.note(self, status)


def traced_head(call: Call, head: RequestHead) -> RequestHead:
    """Return what a script is to see of a request's head: the spans that it makes are children of the request's."""
    if not isinstance(call, WatchedCall) or call.span is None:
        return head
    name, traceparent = TRACEPARENT.decode(), call.span.traceparent.decode()
    others = [pair for pair in head.headers if pair[0].lower() != name]
    return dataclasses.replace(head, headers=[*others, (name, traceparent)])
