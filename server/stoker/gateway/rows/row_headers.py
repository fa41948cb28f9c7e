"""The headers of rows: a frontend writes some of them with a request, and a device the others with its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from stoker.arena import Arena, Outcome
from stoker.errors import (
    DeviceOutOfMemory,
    InvalidInput,
    ModelFailed,
    OutputTooLarge,
    StokerError,
    TooManySequences,
    UnknownSequence,
)
from stoker.gateway.rows.ticket import Ticket
from stoker.gateway.rows.urgency_columns import UrgencyColumns

_NEVER_NS: Final = (1 << 63) - 1


class RequestHeaders:
    """Writes when a row was queued, until when its answer is wanted, its place in its request, and its urgency."""

    __slots__ = ("_arena", "_deadline_ns", "_enqueued_ns", "_position", "_urgencies", "clock_ns")

    def __init__(self, arena: Arena, clock_ns: Callable[[], int]) -> None:
        self._arena = arena
        self._deadline_ns = arena.words("deadline_ns")
        self._enqueued_ns = arena.words("enqueued_ns")
        self._position = arena.words("position")
        self._urgencies = UrgencyColumns(arena)
        self.clock_ns = clock_ns
        arena.deadline_ns[:] = _NEVER_NS

    def write_one(self, ticket: Ticket, number: int) -> int:
        """Write the headers of a request's only row, and return the time."""
        self._deadline_ns[number] = ticket.deadline_ns
        self._position[number] = 0
        self._enqueued_ns[number] = ticket.enqueued_ns = now_ns = self.clock_ns()
        if ticket.urgency is not None or self._urgencies.is_written:
            self._urgencies.write(ticket)
        return now_ns

    def write(self, ticket: Ticket, index: np.ndarray) -> None:
        """Write the headers of a request's rows, whose numbers are `index`."""
        arena = self._arena
        ticket.enqueued_ns = now_ns = self.clock_ns()
        arena.deadline_ns[index] = ticket.deadline_ns
        arena.enqueued_ns[index] = now_ns
        arena.position[index] = np.arange(len(index))
        if ticket.urgency is not None or self._urgencies.is_written:
            self._urgencies.write(ticket)

    def exceeds_share(self, ticket: Ticket, free: Sequence[int]) -> bool:
        """Whether a ticket's caller holds so many rows that those that are free are for others."""
        return self._urgencies.has_callers and self._urgencies.exceeds_share(ticket, free)

    def expired(self, now_ns: int) -> list[int]:
        """Return the rows whose deadline has passed, the withdrawn ones among them."""
        return np.flatnonzero(self._arena.deadline_ns <= now_ns).tolist()

    def withdraw(self, number: int) -> None:
        """Have the device skip a row with which it has not begun."""
        self._deadline_ns[number] = 0

    def clear_deadline(self, number: int) -> None:
        """Remove the deadline of a row that is free."""
        self._deadline_ns[number] = _NEVER_NS


class AnswerHeaders:
    """Reads when a row was run, how long it waited for the device, and what came of it.

    Attributes:
        outcome: By row how its last run has ended; 0 if it was answered.
    """

    __slots__ = ("_arena", "_finished_ns", "_started_ns", "_turn_ns", "_turned", "outcome")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._started_ns = arena.words("started_ns")
        self._finished_ns = arena.words("finished_ns")
        self._turn_ns = arena.words("turn_ns")
        self._turned = arena.words("turned")
        self.outcome = arena.words("outcome")

    def read(self, ticket: Ticket) -> None:
        """Set the times of a request whose rows are back, and its error if one of them has failed."""
        numbers = ticket.row_numbers
        last = numbers[-1]
        ticket.started_ns = self._started_ns[last]
        ticket.finished_ns = self._finished_ns[last]
        if self._turned[0]:
            ticket.note_turn(self._turn_ns[last])
        for number in numbers:
            if self.outcome[number]:
                ticket.error = self._error(ticket, number)
                break

    def read_together(self, tickets: Sequence[Ticket], numbers: Sequence[int]) -> None:
        """`read` for successful requests of one row each."""
        started_ns, finished_ns, has_turns = self._started_ns, self._finished_ns, self._turned[0]
        for ticket, number in zip(tickets, numbers, strict=True):
            ticket.started_ns = started_ns[number]
            ticket.finished_ns = finished_ns[number]
            if has_turns:
                ticket.note_turn(self._turn_ns[number])

    def has_begun(self, ticket: Ticket, number: int) -> bool:
        """Whether the device has begun with a row; a start before it was queued is of the row's former request."""
        return self._started_ns[number] >= ticket.enqueued_ns

    def forget(self, number: int) -> None:
        """Note that a row may not hold the whole of its last request any more."""
        self._finished_ns[number] = 0

    def _error(self, ticket: Ticket, number: int) -> StokerError:
        """Return the error for a row that the device has handed back without an answer."""
        arena, outcome = self._arena, self.outcome[number]
        if outcome == Outcome.EXPIRED:
            return ticket.timeout_error(begun=False)
        if outcome == Outcome.REFUSED:
            return InvalidInput(arena.read_bytes("out", 0, number).decode(errors="ignore"))
        if outcome == Outcome.UNKNOWN_SEQUENCE:
            return UnknownSequence()
        if outcome == Outcome.TOO_MANY_SEQUENCES:
            return TooManySequences()
        if outcome == Outcome.TOO_LARGE:
            return OutputTooLarge("The model's answer is larger than the space that its rows have.")
        error_id = f"{int(arena.detail[number]):016x}"
        if outcome == Outcome.OUT_OF_MEMORY:
            return DeviceOutOfMemory(error_id=error_id)
        has_message = outcome == Outcome.REPORTED
        message = arena.read_bytes("out", 0, number).decode(errors="ignore") if has_message else ""
        return ModelFailed(error_id=error_id, message=message)
