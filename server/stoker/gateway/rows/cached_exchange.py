"""An exchange with a cache: requests that were asked before are answered without the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.arena import Arena
from stoker.gateway.rows.answer_cache import AnswerCache, KeptAnswer
from stoker.gateway.rows.exchange import Exchange
from stoker.gateway.rows.ranges import check_ranges
from stoker.gateway.rows.ticket import Rows, SlicedAnswer, Ticket
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

if TYPE_CHECKING:
    import socket

    from stoker.errors import StokerError
    from stoker.metrics.counters import ModelMetrics

__all__ = ["CachedExchange"]

_OK = 200


class CachedExchange(Exchange):
    """An exchange behind a cache of answers, which the replicas of a model may share.

    Decoded inputs are compared and raw outputs are kept, so all protocols share the answers, and each encodes them
    in its own form.
    """

    def __init__(
        self, arena: Arena, doorbell: socket.socket, cache: AnswerCache, metrics: ModelMetrics, **how: Any
    ) -> None:
        """Create it for one end of a doorbell.

        Args:
            arena: The rows.
            doorbell: The frontend's end.
            cache: The cached answers.
            metrics: Counts hits and misses.
            **how: As for `Exchange`.
        """
        super().__init__(arena, doorbell, **how)
        self._cache, self._metrics = cache, metrics
        # The key of a request has to be computed before it gets a row.
        self._row_memory = None
        self._keys: dict[Ticket, bytes] = {}
        """The cache keys of the requests that the device is to answer."""

    def refusal(self, ticket: Ticket) -> StokerError | None:
        """None: whether a request needs a row, and so could be refused, is known only after it is decoded."""
        del ticket
        return None

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Answer a request from the cache, or queue its rows; see `Exchange.submit`.

        Sliced requests are never cached.
        """
        if len(rows[0]) > self._feeding.share_rows:
            self._check_taken(ticket)
            super().submit(ticket, rows)
            return
        since_ns = self._clock_ns()
        if self._ranges:
            check_ranges(self._ranges, rows)
        try:
            exact = [
                np.ascontiguousarray(values, spec.dtype)
                for values, spec in zip(rows, self.arena.signature.inputs, strict=True)
            ]
        except FloatingPointError:
            # Its error messages are those of the base class.
            super().submit(ticket, rows)
            return
        key = self._cache.key_of_rows(exact)
        if not self._answered(ticket, key, since_ns):
            self._check_taken(ticket)
            super().submit(ticket, exact)
            self._keys[ticket] = key

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Answer a request whose row is its whole body, or queue it; see `Exchange.submit_body`."""
        since_ns = self._clock_ns()
        asked: bytes | memoryview = body
        if self._bodies:
            request = ScriptRequest.unpack(bytes(body))
            if request.head is not None:
                # Two requests never have the same headers.
                self._check_taken(ticket)
                super().submit_body(ticket, body)
                return
            asked = request.body
        key = self._cache.key_of_body(asked)
        if not self._answered(ticket, key, since_ns):
            self._check_taken(ticket)
            super().submit_body(ticket, body)
            self._keys[ticket] = key

    def close(self) -> None:
        """Leave the arena; requests in flight complete with `DeviceLost`."""
        self._keys.clear()
        super().close()

    def _answered(self, ticket: Ticket, key: bytes, since_ns: int) -> bool:
        """Answer from the cache if possible; returns whether it was."""
        answer = self._cache.find(key)
        now_ns = self._clock_ns()
        self._metrics.count_cache(now_ns - since_ns, found=answer is not None)
        if answer is None:
            return False
        ticket.exchange = self
        ticket.rows, ticket.rows_left, ticket.row_numbers = answer.rows, 0, []
        ticket.sliced = answer.outputs
        ticket.enqueued_ns = ticket.started_ns = ticket.finished_ns = now_ns
        ticket.settle()
        return True

    def _check_taken(self, ticket: Ticket) -> None:
        """Refuse a request that is not in the cache if the device could not take it."""
        refusal = super().refusal(ticket)
        if refusal is not None:
            raise refusal

    def _finish(self, ticket: Ticket) -> None:
        key = self._keys.pop(ticket, None)
        # Before the ticket completes, which frees its rows.
        if key is not None and ticket.is_open and not any(self._outcome[row] for row in ticket.row_numbers):
            self._keep(key, ticket)
        super()._finish(ticket)

    def _finish_together(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            key = self._keys.pop(ticket, None)
            if key is not None:
                self._keep(key, ticket)
        super()._finish_together(tickets)

    def _keep(self, key: bytes, ticket: Ticket) -> None:
        since_ns = self._clock_ns()
        outputs = SlicedAnswer(self.arena.signature, ticket.rows)
        outputs.put(ticket, 0)
        if not self._bodies or _is_good(outputs.texts[0][0]):
            self._cache.keep(key, KeptAnswer.of(ticket.rows, outputs))
        self._metrics.count_cache_insertion(self._clock_ns() - since_ns)


def _is_good(answer: bytes) -> bool:
    """Whether an entry script has answered with 200, and has not failed."""
    read = ScriptAnswer.unpack(answer)
    return read.status == _OK and not read.failed
