"""Tickets, the requests in an exchange; and the exchange as those see it who submit them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from stoker.arena import Arena
from stoker.errors import DeadlineExceeded, Overloaded, StokerError
from stoker.gateway.rows.admission import TargetAdmission
from stoker.gateway.rows.urgency import Urgency
from stoker.metrics.counters import BatchFacts
from stoker.sequence_steps import SequenceStep
from stoker.tensors import Signature

logger = logging.getLogger(__name__)


Rows = Sequence[np.ndarray]
"""Per input an array whose first axis is the request's rows; cast to the input's dtype when stored."""

BodyT = TypeVar("BodyT", bytes, memoryview)

Decode = Callable[[BodyT, memoryview | None], Rows]
"""Decodes the rows of a body. Its second argument is the memory of the next free row, or None: a single row may be
written there, and then no arrays are returned. If decoding fails, what was written there is ignored."""


class Exchange(ABC):
    """Where tickets are submitted; belongs to one event loop.

    Contract:

    - `submit` and its siblings either take a ticket and call its `complete` exactly once, later, unless the ticket is
      cancelled; or they raise and have taken nothing. What `complete` raises is only logged: `complete` itself has to
      make sure that the caller gets an answer.
    - Nothing here blocks.

    Attributes:
        arena: The rows; not set where all tickets have a `sliced` answer.
        lost: Whether the exchange is closed.
        rows_done: How many rows the device has handed back.
        admission: Refuses requests that would be late; None if all are accepted while there are free rows.
    """

    signature: Signature
    arena: Arena
    lost = False
    rows_done = 0
    admission: TargetAdmission | None = None

    @property
    @abstractmethod
    def leased_rows(self) -> int:
        """Rows that requests hold now."""

    @property
    def free_rows(self) -> int:
        """Rows that can be leased now."""
        return 0

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether it holds no requests."""

    @property
    def expects_lone_row(self) -> bool:
        """Whether the next row is likely to be the only one."""
        return False

    @abstractmethod
    def refusal(self, ticket: Any) -> StokerError | None:
        """The error that would be raised for any request now; None if a request may be read."""

    @abstractmethod
    def submit(self, ticket: Any, rows: Rows) -> None:
        """Queue a request's rows.

        Args:
            rows: Per input an array of shape `[n, *row_shape]`, n ≥ 1.

        Raises:
            Overloaded: There are not enough free rows.
            DeviceLost: The device process has died.
            InvalidInput: A number does not fit the input's dtype.
        """

    @abstractmethod
    def submit_decoded(self, ticket: Any, body: BodyT, decode: Decode[BodyT]) -> None:
        """Queue the rows of a body, a single one perhaps without a copy; otherwise like `submit`."""

    @abstractmethod
    def submit_body(self, ticket: Any, body: bytes | memoryview) -> None:
        """Queue a request whose row is its whole body; otherwise like `submit`."""

    @abstractmethod
    def cancel(self, ticket: Any) -> None:
        """Cancel the rows of a ticket that have not started."""

    @abstractmethod
    def overloaded(self) -> Overloaded:
        """Return the error for a request for which there is no room."""

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """Return the error for a request of so many rows that has missed its target, `lasts_ns` after it came."""
        del lasts_ns, rows
        return DeadlineExceeded()

    def done_since(self, since_ns: int, most: int) -> Sequence[int]:
        """Return free rows that still hold a request answered since a time, and its answer."""
        del since_ns, most
        return ()

    def ring(self) -> None:  # noqa: B027  # not all have a device
        """Notify the device now of what has been queued; otherwise that happens at the end of the loop's turn."""

    def sweep(self, now_ns: int) -> None:  # noqa: B027  # not all have deadlines of their own
        """Fail the requests whose deadline has passed; call this every few dozen milliseconds."""

    @abstractmethod
    def close(self) -> None:
        """Close it; requests in flight complete with `DeviceLost`."""


class Ticket:
    """One request in an exchange. Subclasses define in `complete` what happens when it is done.

    Attributes:
        error: Why the request failed, or None. Set before `complete` is called.
        deadline_ns: When the caller stops waiting, on the exchange's clock.
        enqueued_ns: When its first rows were queued.
        started_ns, finished_ns: When its last batch left for the device and came back.
        tokens: How many tokens its texts have; set for models that take texts.
        turn_ns: How long that batch waited for its turn of the device while the request was in it.
        exchange: The exchange that holds its rows, and that sets the following attributes:
        is_open: Whether it has neither been completed nor given up.
        row_numbers: Its rows in the arena; not set for a request that is sliced.
        rows_left: How many of them the device has not handed back.
        sliced: Its answer, if it was sliced or did not have to be run.
        urgency: Caller and urgency; None where all requests have the same.
    """

    __slots__ = (
        "_claimed",
        "deadline_ns",
        "enqueued_ns",
        "error",
        "exchange",
        "finished_ns",
        "is_open",
        "row_numbers",
        "rows",
        "rows_left",
        "sequence",
        "sliced",
        "started_ns",
        "tokens",
        "turn_ns",
        "urgency",
    )

    joins: ClassVar[bool] = False
    """Whether tickets of one row each that are done together are completed by one call of `complete_together`."""

    exchange: Exchange
    rows: int
    enqueued_ns: int
    started_ns: int
    finished_ns: int
    row_numbers: list[int]
    rows_left: int
    sequence: SequenceStep
    tokens: int

    def __init__(self, deadline_ns: int) -> None:
        # Only what `Exchange.submit` does not set anyway: this runs once per request.
        self.deadline_ns = deadline_ns
        self.error: StokerError | None = None
        self.is_open = True
        self.sliced: SlicedAnswer | None = None
        self.urgency: Urgency | None = None
        self.turn_ns = 0

    @property
    def target_ns(self) -> int:
        """When its answer stops being of use to the caller, on the exchange's clock; 0: at its deadline."""
        return 0

    def complete(self) -> None:
        """Take the answer or the error; called once, unless the ticket was cancelled."""
        raise NotImplementedError

    def check_quota(self) -> None:
        """Raise QuotaExceeded if nothing may be sent now, however few rows it has."""
        if self.urgency is not None:
            for quota in self.urgency.quotas:
                quota.check()

    def claim(self, rows: int) -> None:
        """Draw its rows from all its quotas, or raise an error of one; only once, as a request may run twice."""
        urgency = self.urgency
        if urgency is None or (urgency.quota is None and urgency.shared is None) or hasattr(self, "_claimed"):
            return
        for quota in urgency.quotas:
            quota.check_rows(rows)
        for quota in urgency.quotas:
            quota.draw(rows)
        self._claimed = True

    def timeout_error(self, *, begun: bool) -> StokerError:  # noqa: ARG002  # for subclasses
        """Return the error for a ticket whose deadline has passed.

        Args:
            begun: Whether the device has begun with its body; not known for rows of numbers.
        """
        return DeadlineExceeded()

    def complete_together(self, tickets: list[Any], outputs: np.ndarray) -> None:
        """`complete` for tickets of one row each without an error, if `joins`; `outputs` is `[tickets, *row_shape]`.

        Where it raises, none of them has been completed, and `complete` of each is called.
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
        return [rows.take(self.row_numbers, axis=0) for rows in arrays]

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
        return [rows.take(self.row_numbers, axis=0) for rows in self.exchange.arena.inputs]

    @property
    def batch(self) -> BatchFacts | None:
        """The batch that its last row was in; None for a request that had no rows, was not run, or was sliced.

        Only valid inside `complete`, if it has not failed.
        """
        numbers = self.row_numbers if self.rows and self.sliced is None else []
        return BatchFacts.unpacked(int(self.exchange.arena.detail[numbers[-1]])) if numbers else None

    def note_texts(self, tokens: int, cut: int) -> None:  # noqa: ARG002  # for subclasses
        """Record how many tokens its texts have, and how many of them were cut; called before its submission."""
        self.tokens = tokens

    def await_rows(self, exchange: Exchange) -> None:
        """Its rows will be submitted later: until then the exchange holds nothing of it to give up."""
        self.exchange = exchange
        self.row_numbers = []

    def complete_empty(self, exchange: Exchange) -> None:
        """Complete a request without rows, for which nothing has to run."""
        self.exchange = exchange
        self.rows = 0
        self.enqueued_ns = self.started_ns = self.finished_ns = time.monotonic_ns()
        self.settle()

    def reopen(self) -> None:
        """Reset it to its state before the submission, so that it can be submitted again.

        Only valid inside `complete`.
        """
        self.is_open, self.error, self.row_numbers, self.sliced = True, None, [], None
        self.turn_ns = 0

    def note_turn(self, waited_ns: int) -> None:
        """Record how long its last batch waited for its turn; its rows may have arrived during that time."""
        self.turn_ns = min(waited_ns, self.started_ns - self.enqueued_ns)

    def cancel(self) -> None:
        """Give the request up: `complete` will not be called, and rows that have not started will not run."""
        self.is_open = False
        self.exchange.cancel(self)

    def extend(self, deadline_ns: int) -> None:
        """Set a later deadline; only for a request whose rows the device has begun with."""
        if self.is_open:
            self.deadline_ns = deadline_ns
            self.exchange.arena.deadline_ns[self.row_numbers] = deadline_ns

    def fail(self, error: StokerError) -> None:
        """Complete with an error now; rows that the device still holds are handed back later."""
        was_open, self.is_open = self.is_open, False
        self.exchange.cancel(self)
        if was_open:
            self.error = error
            self.settle()

    def settle(self) -> None:
        """Call `complete`; an exception in it must not affect the other requests that the calling loop completes."""
        self.is_open = False
        try:
            self.complete()
        except Exception:
            logger.exception("the completion of a request raised")


class SlicedAnswer:
    """The answer of a request that is sliced, or that is answered without rows.

    Attributes:
        inputs: The request's rows, if it may run again.
        arrays: Per output an array `[rows, *row_shape]`; for a variable one an empty array.
        texts: Per output a list with an item a row; for one of fixed size an empty list.
    """

    __slots__ = ("arrays", "inputs", "texts")

    def __init__(self, signature: Signature, rows: int, inputs: Rows = ()) -> None:
        self.inputs = inputs
        self.arrays = [
            np.empty((0 if spec.variable else rows, *spec.shape), spec.dtype) for spec in signature.outputs
        ]
        self.texts = [[b""] * (rows if spec.variable else 0) for spec in signature.outputs]

    def put(self, piece: Ticket, start: int) -> None:
        """Store the answer of the slice that begins with row `start`. Only valid inside its `complete`."""
        arena, stop = piece.exchange.arena, start + piece.rows
        for index, spec in enumerate(arena.signature.outputs):
            if spec.variable:
                self.texts[index][start:stop] = piece.output_texts(index)
            else:
                self.arrays[index][start:stop] = arena.outputs[index][piece.row_numbers]
