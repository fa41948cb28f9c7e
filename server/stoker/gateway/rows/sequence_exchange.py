"""Exchanges to the replicas of a model with state: each sequence has one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import DeadlineExceeded, InvalidInput, NotReady, SequenceRequired
from stoker.gateway.rows.exchange import Exchange
from stoker.gateway.rows.failures import device_lost
from stoker.gateway.rows.ticket import Rows, Ticket
from stoker.gateway.rows.urgency import USUAL
from stoker.sequences import TEXT_IDS, SequenceStep, replica_of

if TYPE_CHECKING:
    import socket

    from stoker.arena import Arena

__all__ = ["SequenceExchange", "SequenceReplicas"]


class SequenceReplicas:
    """Which exchange leads to which replica of a model.

    A sequence has the replica that follows from its name and from how many there are to be, whether or not it is
    there just now: with any other choice one that comes back could find states that others have gone on from.

    Args:
        count: How many replicas there are to be.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._exchanges: dict[int, SequenceExchange] = {}

    def join(self, place: int, exchange: SequenceExchange) -> None:
        """Take note of the exchange to the replica with this number, from 0."""
        self._exchanges[place] = exchange

    def find(self, words: tuple[int, int, int]) -> SequenceExchange:
        """Return the exchange of a sequence, given what its rows say of it.

        Raises:
            NotReady: Its replica is not there now.
        """
        exchange = self._exchanges.get(replica_of(words, self._count))
        if exchange is None or exchange.lost:
            raise NotReady(
                "The replica that has this sequence is being started again; its sequences have ended.",
                retry_after_s=1,
            )
        return exchange


class SequenceExchange(Exchange):
    """An exchange of a model with state. What is submitted to any of them goes to the one of its sequence.

    A request is never left in doubt by this server: one with an answer has been run once, and one with an error has
    changed nothing. So none is run again when its device process has died, and none is told that it was too late
    before the device has said whether it was run.
    """

    def __init__(
        self, arena: Arena, doorbell: socket.socket, replicas: SequenceReplicas, place: int, **how: Any
    ) -> None:
        """Join one end of a doorbell.

        Args:
            arena: The rows.
            doorbell: The frontend's end.
            replicas: The exchanges to all replicas; this one joins them.
            place: The number of the replica.
            **how: As for `Exchange`.
        """
        super().__init__(arena, doorbell, **how)
        self._replicas = replicas
        self._id_dtype = arena.signature.id_dtype
        replicas.join(place, self)

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue the row of a request; see `Exchange.submit`.

        Raises:
            SequenceRequired: It does not say of which sequence it is.
            InvalidInput: It has more rows than one, or an id of which the model cannot be told.
            NotReady: The replica of its sequence is not there now.
            DeviceLost: It has been with a device process that died.
        """
        step = _step_of(ticket)
        if len(rows[0]) != 1:
            raise InvalidInput(f"A request of a sequence has one row, not {len(rows[0])}.")
        words = step.words((ticket.urgency or USUAL).caller.name)
        self._replicas.find(words).queue_step(ticket, [*rows, *self._said(step, words)])

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Queue a request whose row is its whole body; otherwise like `submit`.

        Raises:
            BodyTooLarge: It is longer than a row.
        """
        step = _step_of(ticket)
        words = step.words((ticket.urgency or USUAL).caller.name)
        self._replicas.find(words).queue_body(ticket, body, self._said(step, words))

    def queue_step(self, ticket: Ticket, rows: Rows) -> None:
        """Queue a row here, behind whose inputs stands what it says of its sequence."""
        super().submit(ticket, rows)

    def queue_body(self, ticket: Ticket, body: bytes | memoryview, said: Rows) -> None:
        """Queue a body here, behind which stands what it says of its sequence."""
        super().submit_body(ticket, body)
        (number,) = ticket.row_numbers
        # The device hears of the row at the end of the loop's turn.
        for stored, values in zip(self.arena.inputs[-len(said) :], said, strict=True):
            stored[number] = values[0]

    def _said(self, step: SequenceStep, words: tuple[int, int, int]) -> list[np.ndarray]:
        """What a row says of its sequence, behind its inputs."""
        named = [np.array([words])]
        return [_id_row(step, self._id_dtype), *named] if self._id_dtype else named

    def fail_late(self, ticket: Ticket, number: int) -> None:
        """Withdraw a row; the device hands it back without an answer, or with one where it has begun."""
        del ticket
        self._deadline_ns[number] = 0

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request that was not run in time."""
        del lasts_ns, rows
        return DeadlineExceeded(
            "The request was not answered within its timeout: it was not run, and its sequence is as it was."
        )


def _step_of(ticket: Ticket) -> SequenceStep:
    """What a request says of its sequence; it must not have been with a device process that died."""
    step: SequenceStep | None = getattr(ticket, "sequence", None)
    if step is None:
        raise SequenceRequired
    if getattr(ticket, "ran_again", False):
        raise device_lost()
    return step


def _id_row(step: SequenceStep, dtype: str) -> np.ndarray:
    """The id of a sequence as the model is told it, for one row."""
    if dtype == TEXT_IDS:
        return np.frombuffer(step.text(), np.uint8)[np.newaxis]
    limits = np.iinfo(dtype)
    if not isinstance(step.id, int) or step.id > limits.max:
        raise InvalidInput(
            f"The model is told the id of the sequence, which has to be a number from 1 to {limits.max}."
        )
    return np.array([step.id], dtype)
