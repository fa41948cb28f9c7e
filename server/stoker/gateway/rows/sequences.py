"""Exchanges of a model with state: every request of a sequence goes to the same replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import DeadlineExceeded, InvalidInput, NotReady, SequenceRequired
from stoker.gateway.rows.exchange import ArenaExchange, device_lost
from stoker.gateway.rows.ticket import Rows, Ticket
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
from stoker.sequence_steps import TEXT_IDS, SequenceStep, sequence_replica

if TYPE_CHECKING:
    import socket

    from stoker.arena import Arena


class SequenceReplicas:
    """The exchanges of a model with state, by replica.

    The replica of a sequence is computed from its id and the configured number of replicas, whether or not that
    replica is available now. Any other rule could send a sequence, when a replica returns, to states that are out
    of date.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._exchanges: dict[int, SequenceExchange] = {}

    def join(self, place: int, exchange: SequenceExchange) -> None:
        """Register the exchange of the replica with this number, from 0."""
        self._exchanges[place] = exchange

    def find(self, words: tuple[int, int, int]) -> SequenceExchange:
        """Return the exchange for a sequence, given the sequence columns of its row."""
        exchange = self._exchanges.get(sequence_replica(words, self._count))
        if exchange is None or exchange.lost:
            raise NotReady(
                "The replica that has this sequence is being started again; its sequences have ended.",
                retry_after_s=1,
            )
        return exchange


class SequenceExchange(ArenaExchange):
    """An exchange of a model with state. A request submitted to any of them goes to the one of its sequence.

    A request's answer is never ambiguous: one that is answered has been run once, and one that gets an error has
    changed no state. So no request is repeated after its device process has died, and none is failed as late before
    the device has reported whether it ran.
    """

    def __init__(
        self, arena: Arena, doorbell: socket.socket, replicas: SequenceReplicas, place: int, **how: Any
    ) -> None:
        """Create it for one end of a doorbell."""
        super().__init__(arena, doorbell, **how)
        self._replicas = replicas
        self._id_dtype = arena.signature.id_dtype
        replicas.join(place, self)

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue the row of a request; see `Exchange.submit`."""
        step = _step_of(ticket)
        if len(rows[0]) != 1:
            raise InvalidInput(f"A request of a sequence has one row, not {len(rows[0])}.")
        words = step.words((ticket.urgency or DEFAULT_URGENCY).caller.identity)
        self._replicas.find(words).queue_step(ticket, [*rows, *self._sequence_columns(step, words)])

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Queue a request whose row is its whole body; otherwise like `submit`."""
        step = _step_of(ticket)
        words = step.words((ticket.urgency or DEFAULT_URGENCY).caller.identity)
        self._replicas.find(words).queue_body(ticket, body, self._sequence_columns(step, words))

    def queue_step(self, ticket: Ticket, rows: Rows) -> None:
        """Queue a row here; its sequence columns stand behind its inputs."""
        super().submit(ticket, rows)

    def queue_body(self, ticket: Ticket, body: bytes | memoryview, columns: Rows) -> None:
        """Queue a body here; its sequence columns stand behind it."""
        super().submit_body(ticket, body)
        (number,) = ticket.row_numbers
        # The device is notified of the row at the end of the loop's turn.
        for stored, values in zip(self.arena.inputs[-len(columns) :], columns, strict=True):
            stored[number] = values[0]

    def _sequence_columns(self, step: SequenceStep, words: tuple[int, int, int]) -> list[np.ndarray]:
        """The sequence columns of a row."""
        named = [np.array([words])]
        return [_id_row(step, self._id_dtype), *named] if self._id_dtype else named

    def fail_expired(self, ticket: Ticket, number: int) -> None:
        """Withdraw a row; the device hands it back unrun, or with its answer if it had begun."""
        del ticket
        self._request_headers.withdraw(number)

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request that was not run in time."""
        del lasts_ns, rows
        return DeadlineExceeded(
            "The request was not answered within its timeout: it was not run, and its sequence is as it was."
        )


def _step_of(ticket: Ticket) -> SequenceStep:
    """The sequence of a request, which must not have been with a device process that died."""
    step: SequenceStep | None = getattr(ticket, "sequence", None)
    if step is None:
        raise SequenceRequired
    if getattr(ticket, "was_rerun", False):
        raise device_lost()
    return step


def _id_row(step: SequenceStep, dtype: str) -> np.ndarray:
    """The sequence id as an input of the model, for one row."""
    if dtype == TEXT_IDS:
        return np.frombuffer(step.text(), np.uint8)[np.newaxis]
    limits = np.iinfo(dtype)
    if not isinstance(step.id, int) or step.id > limits.max:
        raise InvalidInput(
            f"The model is told the id of the sequence, which has to be a number from 1 to {limits.max}."
        )
    return np.array([step.id], dtype)
