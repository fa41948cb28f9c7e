"""The frontend's side of an arena: lease rows, submit them, hear when they are done.

A doorbell is a stream socketpair that carries nothing but int32 row numbers, native byte order. The
frontend sends the rows that it queued during one turn of its event loop in one `send`; the device answers
with the rows that are done. Contract:

- `submit` either takes a ticket and calls its `complete` exactly once, later, unless the ticket is
  cancelled; or it raises and has taken nothing. What `complete` raises is logged, and goes no further: that
  a caller has an answer then too is for `complete` to see to.
- Nothing here blocks. Numbers that a full doorbell did not take go out when it is writable again.
- A row that a caller has given up stays leased until the device hands it back; then it is free.
- When the device process dies (EOF), every ticket in flight completes with `DeviceLost`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from array import array
from collections.abc import Callable
from typing import Final

import numpy as np

from stoker.arena import AWAKE_NS, LONE_ROWS, Arena, Outcome, push_numbers
from stoker.errors import (
    BodyTooLarge,
    DeviceLost,
    DeviceOutOfMemory,
    InvalidInput,
    ModelFailed,
    OutputTooLarge,
    Overloaded,
    StokerError,
)
from stoker.gateway.rows.feeding import Feeding
from stoker.gateway.rows.ticket import Rows, Ticket

__all__ = ["Exchange", "device_lost"]

logger = logging.getLogger(__name__)

_NEVER_NS: Final = (1 << 63) - 1
_READ_BYTES: Final = 1 << 14
_MAX_RETRY_AFTER_S: Final = 60
_COOLING_NS: Final = 1_000_000_000
_WARM_ROWS: Final = 64
"""So many rows beside those in use keep the memory that they have."""


class Exchange:
    """Rows of one arena, on the frontend's side. Belongs to one event loop; not thread-safe."""

    def __init__(
        self,
        arena: Arena,
        doorbell: socket.socket,
        *,
        clock_ns: Callable[[], int],
        on_lost: Callable[[Exchange], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Join one end of a doorbell.

        Args:
            arena: The rows.
            doorbell: The frontend's end; it is the exchange's from now on.
            clock_ns: `time.monotonic_ns`.
            on_lost: Called once if the device process ends.
            loop: The event loop.

        Raises:
            RuntimeError: numpy's overflow is not an error in this context.
        """
        if np.geterr()["over"] != "raise":
            # A number that is too large for float32 would become infinity, and nobody would notice.
            raise RuntimeError(
                "numpy has to raise where numbers overflow: call np.seterr(over='raise') before"
            )
        self.arena = arena
        self.lost = False
        self.rows_done = 0
        self._doorbell = doorbell
        self._clock_ns = clock_ns
        self._on_lost = on_lost
        self._loop = loop
        # The last item is leased first, so that few rows are touched while load is low.
        self._free = list(range(arena.capacity - 1, -1, -1))
        self._tickets: list[Ticket | None] = [None] * arena.capacity
        self._queued: list[int] = []
        self._unsent = b""
        self._partial = b""
        self._feeding = Feeding(arena)
        self._deadline_ns = arena.words("deadline_ns")
        self._enqueued_ns = arena.words("enqueued_ns")
        self._position = arena.words("position")
        self._outcome = arena.words("outcome")
        self._started_ns = arena.words("started_ns")
        self._finished_ns = arena.words("finished_ns")
        self._quick = False
        self._lone_rows = 0
        self._awake_until_ns = 0
        self._bodies = arena.signature.takes == "body"
        self._variable = any(spec.variable for spec in (*arena.signature.inputs, *arena.signature.outputs))
        self._narrow = [
            index for index, spec in enumerate(arena.signature.inputs) if _needs_range_check(spec.dtype)
        ]
        only = arena.signature.inputs[0] if len(arena.signature.inputs) == 1 else None
        self._only_input = arena.inputs[0] if only is not None and only.shape else None
        self._cold_rows, self._untouched_rows = 0, arena.capacity
        self._cooling_since_ns = clock_ns()
        self._rate_rows_s = 0.0
        self._rate_mark = (clock_ns(), 0)
        self._deadline_ns_array = arena.deadline_ns
        self._deadline_ns_array[:] = _NEVER_NS
        doorbell.setblocking(False)
        loop.add_reader(doorbell.fileno(), self._on_doorbell)

    @property
    def leased_rows(self) -> int:
        """Rows that requests hold now."""
        return self.arena.capacity - len(self._free)

    @property
    def free_rows(self) -> int:
        """Rows that can be leased now."""
        return len(self._free)

    @property
    def idle(self) -> bool:
        """Whether no request is in it."""
        return not self._feeding.tickets and len(self._free) == self.arena.capacity

    @property
    def full(self) -> bool:
        """Whether no row is free, so that a request would be refused."""
        return not self._free

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue a request's rows.

        Args:
            ticket: A new ticket; its `complete` is called when all rows are done or the request has failed.
            rows: Per input an array of shape `[n, *row_shape]`, n ≥ 1.

        Raises:
            Overloaded: There are not enough free rows.
            DeviceLost: The device process has died.
            InvalidInput: A number does not fit the input's dtype.
        """
        count = len(rows[0])
        if self._narrow:
            self._check_ranges(rows)
        try:
            if count == 1:
                self._admit_one(ticket, rows)
            elif count > self._feeding.share_rows:
                self._feeding.start(ticket, rows, self)
            else:
                self.admit(ticket, rows)
        except FloatingPointError:
            raise InvalidInput("A number is too large for the model's input type.") from None

    def submit_body(self, ticket: Ticket, body: bytes) -> None:
        """Queue a request whose row is its whole body; otherwise like `submit`.

        Raises:
            BodyTooLarge: It is longer than a row.
        """
        self._lease(ticket, 1)
        (number,) = ticket.row_numbers
        try:
            stored = self.arena.write_bytes("in", 0, number, body)
        except BaseException:
            self._release(ticket)
            raise
        if not stored:
            self._release(ticket)
            raise self._too_large(body)
        self._deadline_ns[number] = ticket.deadline_ns
        self._enqueued_ns[number] = ticket.enqueued_ns = self._clock_ns()
        self._position[number] = 0
        self._enqueue(ticket)

    def _too_large(self, body: bytes) -> BodyTooLarge:
        room_bytes = self.arena.signature.inputs[0].row_bytes
        return BodyTooLarge(
            f"The request takes {len(body) / 2**20:.4g} MiB as the model's input; "
            f"{room_bytes / 2**20:.4g} MiB fit: send less at once, or raise max_body_mb."
        )

    def overloaded(self) -> Overloaded:
        """The error for a request that finds no free row, with a Retry-After from the measured service rate."""
        wait_s = self.leased_rows / self._rate_rows_s if self._rate_rows_s else 1.0
        retry_after_s = min(_MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s)))
        return Overloaded(
            f"All {self.arena.capacity} rows of this model's queue are taken; try again later.",
            retry_after_s=retry_after_s,
        )

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed; call this every few dozen milliseconds."""
        self._feeding.sweep(now_ns)
        late = np.flatnonzero(self._deadline_ns_array <= now_ns).tolist()
        for number in late:
            ticket = self._tickets[number]
            if ticket is None or not ticket.is_open:
                self._deadline_ns[number] = _NEVER_NS if ticket is None else 0
                continue
            ticket.fail(ticket.lateness(begun=self._has_begun(ticket, number)))
        self._learn_rate(now_ns)
        if self._variable:
            self._cool(now_ns)

    def _cool(self, now_ns: int) -> None:
        """Give back the memory of rows that a burst has used and nobody has needed since, one at a time."""
        # Rows are leased from the end, and come back there.
        self._untouched_rows = min(self._untouched_rows, len(self._free))
        if now_ns - self._cooling_since_ns >= _COOLING_NS:
            self._cold_rows = max(0, self._untouched_rows - _WARM_ROWS)
            self._untouched_rows, self._cooling_since_ns = len(self._free), now_ns
        if self._cold_rows and not self.arena.give_back_kept_pages(self._free[: self._cold_rows]):
            self._cold_rows = 0

    def _has_begun(self, ticket: Ticket, number: int) -> bool:
        """Whether the device runs a body; a time before it was queued is that of the row's last request."""
        return self._bodies and self._started_ns[number] >= ticket.enqueued_ns

    def _learn_rate(self, now_ns: int) -> None:
        """Measure how many rows a second the device does, over spells in which it had something to do."""
        if not self.leased_rows:
            self._rate_mark = (now_ns, self.rows_done)
            return
        since_ns, done = self._rate_mark
        if now_ns - since_ns >= 500_000_000:
            rate = (self.rows_done - done) * 1e9 / (now_ns - since_ns)
            self._rate_rows_s = rate if not self._rate_rows_s else (rate + self._rate_rows_s) / 2
            self._rate_mark = (now_ns, self.rows_done)

    def close(self) -> None:
        """Leave the arena; requests in flight complete with `DeviceLost`."""
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._doorbell.fileno())
        if self._unsent:
            self._loop.remove_writer(self._doorbell.fileno())
        self._doorbell.close()
        for ticket in dict.fromkeys((*self._feeding.tickets, *filter(None, self._tickets))):
            ticket.fail(device_lost())
        # A ticket knows its exchange: from a circle, only a collection of garbage would free the arena.
        self._tickets = [None] * self.arena.capacity

    def give_up(self, ticket: Ticket) -> None:
        """Mark a ticket's rows as cancelled; the device skips those that have not started."""
        if ticket.sliced is not None:
            self._feeding.give_up(ticket)
            return
        for number in ticket.row_numbers:
            if self._tickets[number] is ticket:
                self._deadline_ns[number] = 0

    def _admit_one(self, ticket: Ticket, rows: Rows) -> None:
        """`admit` for one row, in one piece: most requests have one."""
        if self.lost:
            raise _lost()
        if not self._free:
            raise self.overloaded()
        number = self._free.pop()
        try:
            if self._only_input is not None:
                self._only_input[number] = rows[0]
            else:
                for stored, values in zip(self.arena.inputs, rows, strict=True):
                    stored[number] = values[0]
        except BaseException:
            self._free.append(number)
            raise
        ticket.exchange = self
        ticket.rows = ticket.rows_left = 1
        ticket.row_numbers = [number]
        self._tickets[number] = ticket
        self._deadline_ns[number] = ticket.deadline_ns
        self._position[number] = 0
        self._enqueued_ns[number] = ticket.enqueued_ns = self._clock_ns()
        if len(self._free) < self.arena.capacity - 1:
            self._lone_rows = 0
        elif self._lone_rows < LONE_ROWS:
            self._lone_rows += 1
        else:
            self._ring_for_lone_row(ticket)
            return
        if not self._queued:
            self._loop.call_soon(self.ring)
        self._queued.append(number)

    def admit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue at once all rows of a request, or of a slice; their integers fit the inputs.

        Raises:
            Overloaded: There are not enough free rows.
            DeviceLost: The device process has died.
            FloatingPointError: A number does not fit the input's dtype.
        """
        count = len(rows[0])
        self._lease(ticket, count)
        # numpy would make an array of the list for each of its uses.
        index = np.array(ticket.row_numbers)
        try:
            for stored, values in zip(self.arena.inputs, rows, strict=True):
                stored[index] = values
        except BaseException:
            self._release(ticket)
            raise
        ticket.enqueued_ns = now_ns = self._clock_ns()
        self.arena.deadline_ns[index] = ticket.deadline_ns
        self.arena.enqueued_ns[index] = now_ns
        self.arena.position[index] = np.arange(count)
        self._enqueue(ticket)

    def check_room(self, count: int) -> None:
        """Raise Overloaded or DeviceLost if so many rows cannot be leased now."""
        if self.lost:
            raise _lost()
        if len(self._free) < count:
            raise self.overloaded()

    def _lease(self, ticket: Ticket, count: int) -> None:
        self.check_room(count)
        free = self._free
        ticket.exchange = self
        ticket.rows = count
        ticket.row_numbers = free[-count:]
        del free[-count:]

    def _release(self, ticket: Ticket) -> None:
        self._free.extend(ticket.row_numbers)

    def _enqueue(self, ticket: Ticket) -> None:
        """Take note of a ticket whose rows are whole, with their times."""
        numbers = ticket.row_numbers
        ticket.rows_left = ticket.rows
        for number in numbers:
            self._tickets[number] = ticket
        if not self._queued:
            self._loop.call_soon(self.ring)
        self._queued += numbers

    def ring(self) -> None:
        """Tell the device at once what has been queued; else it is told at the end of the loop's turn."""
        if self._queued and not self.lost:
            numbers, self._queued = self._queued, []
            self._ring_for(numbers)

    def _ring_for_lone_row(self, ticket: Ticket) -> None:
        """Ring at once: nothing is gained by waiting for the rest of this turn."""
        self._ring_for(ticket.row_numbers)
        if self._quick:
            self._awake_until_ns = ticket.enqueued_ns + AWAKE_NS
            self._loop.call_soon(self._stay_awake)

    def _stay_awake(self) -> None:
        """Keep the loop polling, not sleeping, while the only row of a quick model is with the device."""
        if self.leased_rows == 1 and not self.lost and self._clock_ns() < self._awake_until_ns:
            self._loop.call_soon(self._stay_awake)

    def _ring_for(self, numbers: list[int]) -> None:
        data = array("i", numbers).tobytes()
        if self._unsent:
            self._unsent += data
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        was_waiting, self._unsent = bool(self._unsent), push_numbers(self._doorbell, data)
        if self._unsent and not was_waiting:
            self._loop.add_writer(self._doorbell.fileno(), self._on_writable)
        elif was_waiting and not self._unsent:
            self._loop.remove_writer(self._doorbell.fileno())

    def _on_writable(self) -> None:
        self._send(self._unsent)

    def _on_doorbell(self) -> None:
        try:
            data = self._doorbell.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose()
            return
        if self._partial or len(data) % 4:
            data = self._partial + data
            whole = len(data) - len(data) % 4
            data, self._partial = data[:whole], data[whole:]
        tickets, capacity = self._tickets, self.arena.capacity
        numbers = memoryview(data).cast("i").tolist()
        self.rows_done += len(numbers)
        together: list[Ticket] = []
        for number in numbers:
            ticket = tickets[number] if 0 <= number < capacity else None
            if ticket is None:
                logger.error("the device handed back row %d, which nobody had queued", number)
            elif ticket.rows_left > 1:
                ticket.rows_left -= 1
            elif ticket.rows == 1 and ticket.is_open and ticket.joins and not self._outcome[number]:
                together.append(ticket)
            else:
                self._finish(ticket)
        if together:
            self._finish_together(together)
        if self._feeding.hungry:
            self._feeding.go_on()

    def _finish(self, ticket: Ticket) -> None:
        """All rows are back: complete the ticket, then free them."""
        numbers = ticket.row_numbers
        if ticket.is_open:
            last = numbers[-1]
            ticket.started_ns = self._started_ns[last]
            ticket.finished_ns = self._finished_ns[last]
            for number in numbers:
                if self._outcome[number]:
                    ticket.error = self._row_error(ticket, number)
                    break
            self._quick = ticket.finished_ns - ticket.enqueued_ns < AWAKE_NS
            ticket.settle()
        for number in numbers:
            self._tickets[number] = None
            if self._variable:
                self.arena.give_back_pages(number)
        self._free += numbers

    def _finish_together(self, tickets: list[Ticket]) -> None:
        """`_finish` for tickets of one row each that did not fail."""
        numbers = [ticket.row_numbers[0] for ticket in tickets]
        for ticket, number in zip(tickets, numbers, strict=True):
            ticket.is_open = False
            ticket.started_ns = self._started_ns[number]
            ticket.finished_ns = self._finished_ns[number]
            self._tickets[number] = None
        self._quick = tickets[0].finished_ns - tickets[0].enqueued_ns < AWAKE_NS
        try:
            tickets[0].complete_together(tickets, self.arena.outputs[0][numbers])
        except Exception:
            logger.exception("%d requests could not be completed together; now one by one", len(tickets))
            for ticket in tickets:
                ticket.settle()
        self._free += numbers

    def _row_error(self, ticket: Ticket, number: int) -> StokerError:
        outcome = self._outcome[number]
        if outcome == Outcome.EXPIRED:
            return ticket.lateness(begun=False)
        if outcome == Outcome.REFUSED:
            return InvalidInput(self.arena.read_bytes("out", 0, number).decode(errors="ignore"))
        if outcome == Outcome.TOO_LARGE:
            return OutputTooLarge("The model's answer is larger than the space that its rows have.")
        error_id = f"{int(self.arena.error_id[number]):016x}"
        if outcome == Outcome.OUT_OF_MEMORY:
            return DeviceOutOfMemory(error_id=error_id)
        return ModelFailed(error_id=error_id)

    def lose(self) -> None:
        """Take note that the device process has ended: close, and tell the owner."""
        if not self.lost:
            self.close()
            self._on_lost(self)

    def _check_ranges(self, rows: Rows) -> None:
        for index in self._narrow:
            spec = self.arena.signature.inputs[index]
            limits = np.iinfo(spec.dtype)
            values = rows[index]
            if values.size and (values.min() < limits.min or values.max() > limits.max):
                raise InvalidInput(f"A number of {spec.name!r} does not fit {spec.dtype}.")


def device_lost() -> DeviceLost:
    """The error for a request that was with a device process when that ended."""
    return DeviceLost("The device process ended while it held this request.", retry_after_s=1)


def _lost() -> DeviceLost:
    return DeviceLost("The device process ended; it is being restarted.", retry_after_s=1)


def _needs_range_check(dtype: str) -> bool:
    return np.dtype(dtype).kind in "iu" and dtype not in ("int64", "uint64")
