"""Requests with more rows than one request may hold at once: they go through an arena slice by slice."""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

import numpy as np

from stoker.arena import Arena
from stoker.errors import unforeseen
from stoker.gateway.rows.ticket import Rows, RowsHolder, SlicedAnswer, Ticket

__all__ = ["Feeding", "SliceHolder"]

logger = logging.getLogger(__name__)


class SliceHolder(RowsHolder, Protocol):
    """The part of the exchange that sliced requests need."""

    @property
    def free_rows(self) -> int:
        """Rows that can be leased now."""
        ...

    def check_room(self, count: int) -> None:
        """Raise Overloaded or DeviceLost if so many rows cannot be leased now."""
        ...

    def admit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue rows of the inputs' dtypes."""
        ...


class _Slice(Ticket):
    """Some rows of a large request, from row `start` on."""

    __slots__ = ("_feeding", "parent", "start")

    def __init__(self, feeding: Feeding, parent: Ticket, start: int) -> None:
        super().__init__(parent.deadline_ns)
        self._feeding = feeding
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
        self._feeding.collect(self)


class _Feed:
    """The state of a large request: the rows that are still to be queued, and the slices in the arena."""

    __slots__ = ("answer", "exchange", "next_row", "rows", "rows_left", "slices")

    def __init__(self, exchange: SliceHolder, rows: Rows) -> None:
        self.exchange = exchange
        self.rows = rows
        self.next_row = 0
        self.rows_left = len(rows[0])
        self.slices: list[_Slice] = []
        self.answer = SlicedAnswer(exchange.arena.signature, self.rows_left, rows)


class Feeding:
    """The large requests of one exchange.

    A large request has at most two slices in the arena: one that is computed, and one that waits. A slice is an
    eighth of the arena, so the request holds at most a quarter and leaves room for others.

    Attributes:
        share_rows: The most rows that a request may have to be queued as a whole; larger ones are sliced.
        hungry: The large requests that wait for free rows for their next slice.
    """

    def __init__(self, arena: Arena) -> None:
        self.share_rows = arena.capacity // 2
        self._slice_rows = max(1, arena.capacity // 8)
        self.hungry: deque[Ticket] = deque()
        # Only these refer to the exchange: in a reference cycle with it, only the garbage collector would free the
        # arena of a device process that has ended.
        self._feeds: dict[Ticket, _Feed] = {}

    @property
    def tickets(self) -> list[Ticket]:
        """The large requests in progress."""
        return list(self._feeds)

    def start(self, ticket: Ticket, rows: Rows, exchange: SliceHolder) -> None:
        """Queue the first two slices, if there is room for two.

        Raises:
            Overloaded: There is not even room for one slice.
            DeviceLost: The device process has died.
            FloatingPointError: A number does not fit the input's dtype.
        """
        exchange.check_room(self._slice_rows)
        specs = exchange.arena.signature.inputs
        # All rows are converted now: a number that does not fit must not be found when half of the rows have been
        # run.
        feed = _Feed(
            exchange, [np.asarray(values, spec.dtype) for values, spec in zip(rows, specs, strict=True)]
        )
        ticket.claim(feed.rows_left)
        ticket.exchange = exchange
        ticket.rows = feed.rows_left
        ticket.enqueued_ns = self._queue_slice(ticket, feed).enqueued_ns
        ticket.sliced = feed.answer
        self._feeds[ticket] = feed
        if feed.next_row < ticket.rows:
            self.hungry.append(ticket)
            self.go_on()

    def go_on(self) -> None:
        """Queue further slices of waiting requests, as far as there is room."""
        while self.hungry:
            ticket = self.hungry[0]
            feed = self._feeds[ticket]
            if feed.exchange.free_rows < self._slice_rows:
                return
            self.hungry.popleft()
            try:
                self._queue_slice(ticket, feed)
            except Exception as error:  # noqa: BLE001  # a lack of memory, say
                _fail(ticket, error)

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed."""
        for ticket in self.tickets:
            if ticket.deadline_ns <= now_ns:
                ticket.fail(ticket.lateness(begun=False))

    def give_up(self, ticket: Ticket) -> None:
        """Queue no more slices of a request, and cancel those that have not started."""
        feed = self._feeds.pop(ticket, None)
        if feed is not None:
            self._sate(ticket)
            for piece in feed.slices:
                piece.cancel()

    def collect(self, piece: _Slice) -> None:
        """Add the answer of a slice; completes the request with its last one."""
        ticket = piece.parent
        feed = self._feeds[ticket]
        feed.slices.remove(piece)
        if piece.error is not None:
            ticket.fail(piece.error)
            return
        try:
            feed.answer.put(piece, piece.start)
        except Exception as error:  # noqa: BLE001  # a lack of memory, say
            _fail(ticket, error)
            return
        feed.rows_left -= piece.rows
        ticket.started_ns, ticket.finished_ns = piece.started_ns, piece.finished_ns
        ticket.turn_ns = piece.turn_ns
        if not feed.rows_left:
            del self._feeds[ticket]
            ticket.settle()
        elif feed.next_row < ticket.rows:
            # The slice's rows are freed after this call, and the next slice takes them then.
            self.hungry.append(ticket)

    def _queue_slice(self, ticket: Ticket, feed: _Feed) -> _Slice:
        start, stop = feed.next_row, min(ticket.rows, feed.next_row + self._slice_rows)
        piece = _Slice(self, ticket, start)
        feed.exchange.admit(piece, [values[start:stop] for values in feed.rows])
        feed.next_row = stop
        feed.slices.append(piece)
        if stop == ticket.rows:
            # Both slices may have come back before this one, the last, was queued.
            self._sate(ticket)
        return piece

    def _sate(self, ticket: Ticket) -> None:
        self.hungry = deque(hungry for hungry in self.hungry if hungry is not ticket)


def _fail(ticket: Ticket, error: Exception) -> None:
    """Fail a request after an internal error, which would otherwise leave it unanswered."""
    logger.error("a slice of a large request failed", exc_info=error)
    ticket.fail(unforeseen(error))
