"""One request in an exchange, whole or flowing through it slice by slice."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from stoker.arena import Arena
from stoker.errors import DeadlineExceeded, StokerError

__all__ = ["Feed", "Rows", "RowsHolder", "Slice", "Ticket"]

logger = logging.getLogger(__name__)

Rows = Sequence[np.ndarray]
"""Per input an array whose first axis is the request's rows; cast to the input's dtype when stored."""


class RowsHolder(Protocol):
    """What a ticket needs of the exchange that holds its rows."""

    arena: Arena

    def give_up(self, ticket: Ticket) -> None:
        """Let the rows that have not started not run."""
        ...

    def collect(self, parent: Ticket, piece: Ticket, start: int) -> None:
        """Take the answer of the slice that begins with this row of the request."""
        ...


class Ticket:
    """One request in an exchange. A subclass says in `complete` what happens when it is done.

    Attributes:
        error: Why the request failed, or None. Set before `complete` is called.
        rows: How many rows the request has.
        deadline_ns: When the caller stops waiting, on the exchange's clock.
        enqueued_ns: When its first rows were queued.
        started_ns, finished_ns: When its last batch left for the device and came back.
    """

    __slots__ = (
        "_feed",
        "_numbers",
        "_open",
        "_remaining",
        "deadline_ns",
        "enqueued_ns",
        "error",
        "exchange",
        "finished_ns",
        "rows",
        "started_ns",
    )

    joins: ClassVar[bool] = False
    """Whether tickets of one row each that are done at once are completed by one call of `complete_together`."""

    exchange: RowsHolder
    rows: int
    enqueued_ns: int
    started_ns: int
    finished_ns: int
    _numbers: list[int]
    _remaining: int

    def __init__(self, deadline_ns: int) -> None:
        # Only what has to be there before `Exchange.submit` sets the rest: this runs once a request.
        self.deadline_ns = deadline_ns
        self.error: StokerError | None = None
        self._open = True
        self._feed: Feed | None = None

    def complete(self) -> None:
        """Take the answer or the error; called once, unless the ticket was cancelled."""
        raise NotImplementedError

    def lateness(self, *, begun: bool) -> StokerError:  # noqa: ARG002  # for subclasses
        """Return the error for a ticket whose deadline has passed.

        Args:
            begun: Whether the device has begun with its body; not known of rows of numbers.
        """
        return DeadlineExceeded("The request was not answered within its timeout.")

    def complete_together(self, tickets: list[Any], outputs: np.ndarray) -> None:
        """`complete` for tickets of one row each without an error, self among them; only called if `joins`.

        Args:
            tickets: Tickets of this class.
            outputs: Their rows of the first output, `[tickets, *row_shape]`.
        """
        raise NotImplementedError

    def outputs(self) -> list[np.ndarray]:
        """The answer of fixed-size outputs, each `[rows, *row_shape]`. Only valid inside `complete`."""
        if self._feed is not None:
            return self._feed.results
        arrays = self.exchange.arena.outputs
        if self.rows == 1:
            number = self._numbers[0]
            return [rows[number : number + 1] for rows in arrays]
        return [rows[self._numbers] for rows in arrays]

    def output_texts(self, index: int) -> list[bytes]:
        """The answer of a variable output, one item per row. Only valid inside `complete`."""
        if self._feed is not None:
            return self._feed.texts[index]
        return [self.exchange.arena.read_bytes("out", index, number) for number in self._numbers]

    def body(self) -> bytes:
        """The body that it was submitted with, by `Exchange.submit_body`. Only valid inside `complete`."""
        return self.exchange.arena.read_bytes("in", 0, self._numbers[0])

    def reopen(self) -> None:
        """Be as before it was submitted, so that it can be submitted again. Only valid inside `complete`."""
        self._open, self.error, self._numbers = True, None, []

    def cancel(self) -> None:
        """Give the request up: `complete` will not be called, rows that have not started will not run."""
        self._open = False
        self.exchange.give_up(self)

    def fail(self, error: StokerError) -> None:
        """Complete with an error now; rows that the device still holds come back later."""
        was_open, self._open = self._open, False
        self.exchange.give_up(self)
        if was_open:
            self.error = error
            self.settle()

    def settle(self) -> None:
        """Call `complete`; a fault in it must not reach the other requests of the caller's loop."""
        self._open = False
        try:
            self.complete()
        except Exception:
            logger.exception("the completion of a request raised")


class Slice(Ticket):
    """Rows `start` and following of a request with more rows than it may hold at once."""

    __slots__ = ("parent", "start")

    def __init__(self, parent: Ticket, start: int) -> None:
        super().__init__(parent.deadline_ns)
        self.parent = parent
        self.start = start

    def complete(self) -> None:
        """Hand its answer to the request that it is a part of."""
        self.exchange.collect(self.parent, self, self.start)


class Feed:
    """The rest of a request that flows through the arena slice by slice."""

    __slots__ = ("next_row", "pending", "results", "rows", "slices", "texts")

    def __init__(self, rows: Rows, arena: Arena, count: int) -> None:
        self.rows: Rows = rows
        self.next_row = 0
        self.pending = count
        self.slices: list[Ticket] = []
        self.results = [
            np.empty((0 if spec.variable else count, *spec.shape), spec.dtype)
            for spec in arena.signature.outputs
        ]
        self.texts: list[list[bytes]] = [
            [b""] * (count if spec.variable else 0) for spec in arena.signature.outputs
        ]
