"""One request in an exchange."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from stoker.arena import Arena
from stoker.errors import DeadlineExceeded, StokerError
from stoker.gateway.rows.urgency import Urgency
from stoker.tensors import Signature

__all__ = ["Rows", "RowsHolder", "SlicedAnswer", "Ticket"]

logger = logging.getLogger(__name__)

Rows = Sequence[np.ndarray]
"""Per input an array whose first axis is the request's rows; cast to the input's dtype when stored."""


class RowsHolder(Protocol):
    """What a ticket needs of the exchange that holds its rows."""

    arena: Arena

    def give_up(self, ticket: Ticket) -> None:
        """Let the rows that have not started not run."""
        ...


class Ticket:
    """One request in an exchange. A subclass says in `complete` what happens when it is done.

    Attributes:
        error: Why the request failed, or None. Set before `complete` is called.
        rows: How many rows the request has.
        deadline_ns: When the caller stops waiting, on the exchange's clock.
        enqueued_ns: When its first rows were queued.
        started_ns, finished_ns: When its last batch left for the device and came back.
        exchange: What holds its rows. It keeps the attributes that follow:
        is_open: Whether it is still to be completed: it has not been, nor been given up.
        row_numbers: Its rows in the arena; not set if it flows through that slice by slice.
        rows_left: How many of them the device has not handed back.
        sliced: Its answer, if it flows through the arena slice by slice.
        urgency: Whose it is, and how urgent; None where nobody says anything of that.
    """

    __slots__ = (
        "deadline_ns",
        "enqueued_ns",
        "error",
        "exchange",
        "finished_ns",
        "is_open",
        "row_numbers",
        "rows",
        "rows_left",
        "sliced",
        "started_ns",
        "urgency",
    )

    joins: ClassVar[bool] = False
    """Whether tickets of one row each that are done at once are completed by one call of `complete_together`."""

    exchange: RowsHolder
    rows: int
    enqueued_ns: int
    started_ns: int
    finished_ns: int
    row_numbers: list[int]
    rows_left: int

    def __init__(self, deadline_ns: int) -> None:
        # Only what has to be there before `Exchange.submit` sets the rest: this runs once a request.
        self.deadline_ns = deadline_ns
        self.error: StokerError | None = None
        self.is_open = True
        self.sliced: SlicedAnswer | None = None
        self.urgency: Urgency | None = None

    @property
    def target_ns(self) -> int:
        """Until when its answer is worth something, on the exchange's clock; 0 until its deadline."""
        return 0

    def complete(self) -> None:
        """Take the answer or the error; called once, unless the ticket was cancelled."""
        raise NotImplementedError

    def lateness(self, *, begun: bool) -> StokerError:  # noqa: ARG002  # for subclasses
        """Return the error for a ticket whose deadline has passed.

        Args:
            begun: Whether the device has begun with its body; not known of rows of numbers.
        """
        return DeadlineExceeded()

    def complete_together(self, tickets: list[Any], outputs: np.ndarray) -> None:
        """`complete` for tickets of one row each without an error, self among them; only called if `joins`.

        Args:
            tickets: Tickets of this class.
            outputs: Their rows of the first output, `[tickets, *row_shape]`.

        Raises:
            Exception: None of them has been completed; `complete` of each is called then.
        """
        raise NotImplementedError

    def outputs(self) -> list[np.ndarray]:
        """The answer of fixed-size outputs, each `[rows, *row_shape]`. Only valid inside `complete`."""
        if self.sliced is not None:
            return self.sliced.arrays
        arrays = self.exchange.arena.outputs
        if self.rows == 1:
            number = self.row_numbers[0]
            return [rows[number : number + 1] for rows in arrays]
        return [rows[self.row_numbers] for rows in arrays]

    def output_texts(self, index: int) -> list[bytes]:
        """The answer of a variable output, one item per row. Only valid inside `complete`."""
        if self.sliced is not None:
            return self.sliced.texts[index]
        return [self.exchange.arena.read_bytes("out", index, number) for number in self.row_numbers]

    def body(self) -> bytes:
        """The body that it was submitted with, by `Exchange.submit_body`. Only valid inside `complete`."""
        return self.exchange.arena.read_bytes("in", 0, self.row_numbers[0])

    def inputs(self) -> Rows:
        """The rows that it was submitted with, by `Exchange.submit`. Only valid inside `complete`."""
        if self.sliced is not None:
            return self.sliced.inputs
        return [rows[self.row_numbers] for rows in self.exchange.arena.inputs]

    def reopen(self) -> None:
        """Be as before it was submitted, so that it can be submitted again. Only valid inside `complete`."""
        self.is_open, self.error, self.row_numbers, self.sliced = True, None, [], None

    def cancel(self) -> None:
        """Give the request up: `complete` will not be called, rows that have not started will not run."""
        self.is_open = False
        self.exchange.give_up(self)

    def fail(self, error: StokerError) -> None:
        """Complete with an error now; rows that the device still holds come back later."""
        was_open, self.is_open = self.is_open, False
        self.exchange.give_up(self)
        if was_open:
            self.error = error
            self.settle()

    def settle(self) -> None:
        """Call `complete`; a fault in it must not reach the other requests of the caller's loop."""
        self.is_open = False
        try:
            self.complete()
        except Exception:
            logger.exception("the completion of a request raised")


class SlicedAnswer:
    """The answer of a request whose rows come back slice by slice.

    Attributes:
        inputs: The request's rows.
        arrays: Per output an array `[rows, *row_shape]`; for a variable one an empty array.
        texts: Per output a list with an item a row; for one of fixed size an empty list.
    """

    __slots__ = ("arrays", "inputs", "texts")

    def __init__(self, signature: Signature, inputs: Rows) -> None:
        rows = len(inputs[0])
        self.inputs = inputs
        self.arrays = [
            np.empty((0 if spec.variable else rows, *spec.shape), spec.dtype) for spec in signature.outputs
        ]
        self.texts = [[b""] * (rows if spec.variable else 0) for spec in signature.outputs]

    def put(self, piece: Ticket, start: int) -> None:
        """Take over the answer of the slice that begins with row `start`. Only valid inside its `complete`."""
        arena, stop = piece.exchange.arena, start + piece.rows
        for index, spec in enumerate(arena.signature.outputs):
            if spec.variable:
                self.texts[index][start:stop] = piece.output_texts(index)
            else:
                self.arrays[index][start:stop] = arena.outputs[index][piece.row_numbers]
