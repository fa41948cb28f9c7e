"""Requests with more rows than one request may hold at once: they go through the arena slice by slice."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque

import numpy as np

from stoker.errors import unexpected_error
from stoker.gateway.rows.ticket import Exchange, Rows, SlicedAnswer, Ticket

logger = logging.getLogger(__name__)


class SlicingExchange(Exchange):
    """An exchange through which large requests can go slice by slice."""

    @abstractmethod
    def check_room(self, count: int) -> None:
        """Raise Overloaded or DeviceLost if so many rows cannot be leased now."""

    @abstractmethod
    def admit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue all rows of a request, or of a slice; their integers must have been checked to fit the inputs.

        Raises what `submit` does, but FloatingPointError where a number does not fit the input's dtype.
        """


class _Slice(Ticket):
    """Some rows of a large request, from row `start` on."""

    __slots__ = ("_owner", "parent", "start")

    def __init__(self, owner: SlicedTickets, parent: Ticket, start: int) -> None:
        super().__init__(parent.deadline_ns)
        self._owner = owner
        self.parent = parent
        self.start = start
        self.urgency = parent.urgency

    @property
    def target_ns(self) -> int:
        """The target of the whole request."""
        return self.parent.target_ns

    def claim(self, rows: int) -> None:
        """Does nothing: the whole request has claimed its rows from the quota."""

    def complete(self) -> None:
        """Pass the slice's answer to the whole request."""
        self._owner.collect(self)


class _SlicedTicket:
    """The state of a large request: the rows that are still to be queued, and the slices in the arena."""

    __slots__ = ("answer", "exchange", "next_row", "rows", "rows_left", "slices")

    def __init__(self, exchange: SlicingExchange, rows: Rows) -> None:
        self.exchange = exchange
        self.rows = rows
        self.next_row = 0
        self.rows_left = len(rows[0])
        self.slices: list[_Slice] = []
        self.answer = SlicedAnswer(exchange.signature, self.rows_left, rows)


class SlicedTickets:
    """The requests with more rows than one request may hold at once: they go through the arena slice by slice.

    A large request has at most two slices in the arena: one that is computed, and one that waits. A slice is an
    eighth of the arena, so the request holds at most a quarter and leaves room for others.

    Attributes:
        share_rows: The most rows that a request may have to be queued as a whole; larger ones are sliced.
        waiting: The large requests that wait for free rows for their next slice.
    """

    def __init__(self, capacity: int) -> None:
        self.share_rows = capacity // 2
        self._slice_rows = max(1, capacity // 8)
        self.waiting: deque[Ticket] = deque()
        # Only these refer to the exchange: in a reference cycle with it, only the garbage collector would free the
        # arena of a device process that has ended.
        self._sliced: dict[Ticket, _SlicedTicket] = {}

    @property
    def tickets(self) -> list[Ticket]:
        """The large requests in progress."""
        return list(self._sliced)

    def start(self, ticket: Ticket, rows: Rows, exchange: SlicingExchange) -> None:
        """Queue the first two slices, or one if there is no room for two; raises what `admit` does."""
        exchange.check_room(self._slice_rows)
        specs = exchange.signature.inputs
        # All rows are converted now: a number that does not fit must not be found when half of the rows have been
        # run.
        sliced = _SlicedTicket(
            exchange, [np.asarray(values, spec.dtype) for values, spec in zip(rows, specs, strict=True)]
        )
        ticket.claim(sliced.rows_left)
        ticket.exchange = exchange
        ticket.rows = sliced.rows_left
        ticket.enqueued_ns = self._queue_slice(ticket, sliced).enqueued_ns
        ticket.sliced = sliced.answer
        self._sliced[ticket] = sliced
        if sliced.next_row < ticket.rows:
            self.waiting.append(ticket)
            self.queue_waiting()

    def queue_waiting(self) -> None:
        """Queue further slices of waiting requests, as far as there is room."""
        while self.waiting:
            ticket = self.waiting[0]
            sliced = self._sliced[ticket]
            if sliced.exchange.free_rows < self._slice_rows:
                return
            self.waiting.popleft()
            try:
                self._queue_slice(ticket, sliced)
            except Exception as error:  # noqa: BLE001  # a lack of memory, say
                _fail_unforeseen(ticket, error)

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed."""
        for ticket in self.tickets:
            if ticket.deadline_ns <= now_ns:
                ticket.fail(ticket.timeout_error(begun=False))

    def cancel(self, ticket: Ticket) -> None:
        """Queue no more slices of a request, and cancel those that have not started."""
        sliced = self._sliced.pop(ticket, None)
        if sliced is not None:
            self._stop_waiting(ticket)
            for piece in sliced.slices:
                piece.cancel()

    def collect(self, piece: _Slice) -> None:
        """Add the answer of a slice; completes the request with its last one."""
        ticket = piece.parent
        sliced = self._sliced[ticket]
        sliced.slices.remove(piece)
        if piece.error is not None:
            ticket.fail(piece.error)
            return
        try:
            sliced.answer.put(piece, piece.start)
        except Exception as error:  # noqa: BLE001  # a lack of memory, say
            _fail_unforeseen(ticket, error)
            return
        sliced.rows_left -= piece.rows
        ticket.started_ns, ticket.finished_ns = piece.started_ns, piece.finished_ns
        ticket.turn_ns = piece.turn_ns
        if not sliced.rows_left:
            del self._sliced[ticket]
            ticket.settle()
        elif sliced.next_row < ticket.rows:
            # The slice's rows are freed after this call, and the next slice takes them then.
            self.waiting.append(ticket)

    def _queue_slice(self, ticket: Ticket, sliced: _SlicedTicket) -> _Slice:
        start, stop = sliced.next_row, min(ticket.rows, sliced.next_row + self._slice_rows)
        piece = _Slice(self, ticket, start)
        sliced.exchange.admit(piece, [values[start:stop] for values in sliced.rows])
        sliced.next_row = stop
        sliced.slices.append(piece)
        if stop == ticket.rows:
            # Both slices may have come back before this one, the last, was queued.
            self._stop_waiting(ticket)
        return piece

    def _stop_waiting(self, ticket: Ticket) -> None:
        self.waiting = deque(other for other in self.waiting if other is not ticket)


def _fail_unforeseen(ticket: Ticket, error: Exception) -> None:
    """Fail a request after an internal error, which would otherwise leave it unanswered."""
    logger.error("a slice of a large request failed", exc_info=error)
    ticket.fail(unexpected_error(error))
