"""A service with a limit on concurrent requests: further ones wait for a short time, then they are refused.

Implements `max_concurrent_requests` and `max_queue_wait_ms` (on Azure `replica_max_concurrent_requests` and
`max_request_wait_time`). A service without a limit is a plain `Service` and pays nothing for this: its queue is
bounded by the rows of its arena.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

from stoker.errors import DeadlineExceeded, Overloaded
from stoker.gateway.scoring.call import Call, JoiningCall
from stoker.gateway.scoring.service import Service

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.service import ServiceOptions
    from stoker.gateway.scoring.service_facts import Limits, ServiceFacts
    from stoker.keys.access import Access
    from stoker.metrics.counters import ModelMetrics
    from stoker.wire.script_requests import RequestHead

_MAX_WAITING: Final = 1024
_LATE: Final = "The request was not answered in time: it waited to be admitted."
_WAIT_LINE: Final = b"server-timing: admission;dur=%.3f\r\n"


class _Waiting(NamedTuple):
    body: bytes
    head: RequestHead | None
    since_ns: int


class LimitedService(Service):
    """A service with a limit on this frontend's requests between their admission and their answer.

    Args:
        limits: Has `max_concurrent_requests`; at most 1024 further requests wait for admission.
    """

    def __init__(
        self,
        facts: ServiceFacts,
        access: Access,
        metrics: ModelMetrics,
        limits: Limits,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
        **options: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(facts, access, metrics, limits, **options)
        assert limits.max_concurrent_requests is not None, "else it were a plain service"
        self._limit = limits.max_concurrent_requests
        self._max_wait_ms = limits.max_queue_wait_ms
        self._clock_ns = clock_ns
        self._call_later = call_later
        self.call_type = _LimitedCall
        self.in_flight = 0
        self._waiting: OrderedDict[_LimitedCall, _Waiting] = OrderedDict()

    def attach(self, exchange: Exchange) -> None:
        """Use this exchange too from now on."""
        super().attach(exchange)
        self.call_type = _LimitedJoiningCall if issubclass(self.call_type, JoiningCall) else _LimitedCall

    @property
    def idle(self) -> bool:
        """Whether every request that has arrived is answered."""
        return super().idle and not self._waiting

    def sweep(self, now_ns: int) -> None:
        """Fail late requests, and update the gauge of waiting requests."""
        super().sweep(now_ns)
        self.metrics.set_held_requests(self.in_flight + len(self._waiting), self._limit)

    def leave(self) -> None:
        """An admitted request is answered, or its caller has gone: admit the next one."""
        self.in_flight -= 1
        if self._waiting:
            # Not called from within the answer: the next one may be answered at once too, and would recurse.
            self._after(0.0, self._admit_waiting)

    def _admit_waiting(self) -> None:
        while self._waiting and self.in_flight < self._limit:
            call, waiting = self._waiting.popitem(last=False)
            if call.is_awaited:
                call.waited_ns = self._clock_ns() - waiting.since_ns
                self._admit(call, waiting.body, waiting.head)

    def submit(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        """Submit a call now, queue it for admission, or refuse it."""
        assert isinstance(call, _LimitedCall), "made by this service"
        if self.in_flight < self._limit and not self._waiting:
            self._admit(call, body, head)
        elif self._max_wait_ms and len(self._waiting) < _MAX_WAITING:
            now_ns = self._clock_ns()
            call.shorten((call.dialect or self.dialect).timeout_ns(self, body))
            until_ns = min(now_ns + self._max_wait_ms * 1_000_000, call.deadline_ns)
            self._waiting[call] = _Waiting(body, head, now_ns)
            self._after(max(0.0, (until_ns - now_ns) / 1e9), partial(self._expire, call, until_ns))
        else:
            call.refuse(self._busy())

    def _admit(self, call: _LimitedCall, body: bytes, head: RequestHead | None) -> None:
        self.in_flight += 1
        call.admitted = True
        super().submit(call, body, head)

    def _expire(self, call: _LimitedCall, until_ns: int) -> None:
        """Refuse a request that has waited until then, unless it has been admitted."""
        if self._waiting.pop(call, None) is not None and call.is_awaited:
            call.refuse(DeadlineExceeded(_LATE) if call.deadline_ns <= until_ns else self._busy())

    def _after(self, delay_s: float, function: Callable[[], None]) -> None:
        (self._call_later or asyncio.get_running_loop().call_later)(delay_s, function)

    def _busy(self) -> Overloaded:
        exchange = self.replicas.only or self.replicas.least_loaded()
        retry_after_s = None if exchange is None else exchange.overloaded().retry_after_s
        return Overloaded(
            f"{self.name} has as many requests in flight as it takes at once; try again later.",
            retry_after_s=retry_after_s or 1,
        )


class _LimitedCall(Call):
    """A call that notifies its service when it ends; `admitted` while it counts as in flight."""

    __slots__ = ("admitted", "waited_ns")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.admitted = False
        self.waited_ns = 0

    def abandon(self) -> None:
        """The caller has gone: rows that have not started will not run."""
        super().abandon()
        self._leave()

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Answer the caller; the time of the wait is part of the answer's timing."""
        if self.waited_ns:
            lines += _WAIT_LINE % (self.waited_ns / 1e6)
        try:
            super().answer(status, lines, body)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self.admitted:
            self.admitted = False
            service = self._service
            assert isinstance(service, LimitedService), "who made it"
            service.leave()


class _LimitedJoiningCall(_LimitedCall, JoiningCall):
    """A limited call whose answer is encoded together with those of others."""

    __slots__ = ()
