"""An exchange that answers what was asked before by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.arena import Arena
from stoker.gateway.rows.answer_cache import AnswerCache, KeptAnswer
from stoker.gateway.rows.exchange import Exchange
from stoker.gateway.rows.ranges import check_ranges
from stoker.gateway.rows.ticket import Rows, SlicedAnswer, Ticket
from stoker.wire.envelope import ScriptAnswer, ScriptRequest

if TYPE_CHECKING:
    import socket

    from stoker.errors import StokerError
    from stoker.metrics.counters import ModelMetrics

__all__ = ["CachedExchange"]

_OK = 200


class CachedExchange(Exchange):
    """An exchange in front of which there is a cache of answers; several replicas may share it.

    What dialects have decoded is what is compared, and what the model has given is what is kept: all protocols share
    the answers, and write each in their own way.
    """

    def __init__(
        self, arena: Arena, doorbell: socket.socket, cache: AnswerCache, metrics: ModelMetrics, **how: Any
    ) -> None:
        """Join one end of a doorbell.

        Args:
            arena: The rows.
            doorbell: The frontend's end.
            cache: The answers.
            metrics: Counts what is found there.
            **how: As for `Exchange`.
        """
        super().__init__(arena, doorbell, **how)
        self._cache, self._metrics = cache, metrics
        # What is asked has to be known before it has a row.
        self._row_memory = None
        self._keys: dict[Ticket, bytes] = {}
        """What the requests have asked that the device is to answer."""

    def refusal(self, ticket: Ticket) -> StokerError | None:
        """None: only when a request has been decoded it is known whether it needs a row, and could be refused."""
        del ticket
        return None

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Answer a request, or queue its rows; see `Exchange.submit`. Those that flow in slices are always run."""
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
            # It refuses them in its words.
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
                # Two requests with the same headers are not to be had.
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
        """Answer with what is kept, if it is."""
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
        """Refuse a request that is not answered here, if the device could not take it."""
        refusal = super().refusal(ticket)
        if refusal is not None:
            raise refusal

    def _finish(self, ticket: Ticket) -> None:
        key = self._keys.pop(ticket, None)
        # Before the ticket is told: its rows are free then.
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
    """Whether a script has answered with 200, and not failed."""
    read = ScriptAnswer.unpack(answer)
    return read.status == _OK and not read.failed
