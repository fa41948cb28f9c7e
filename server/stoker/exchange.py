"""The frontend's side of an arena: lease rows, submit them, hear when they are done.

A doorbell is a stream socketpair that carries nothing but int32 row numbers, native byte order. The
frontend sends the rows that it queued during one turn of its event loop in one `send`; the device answers
with the rows that are done. Contract:

- `submit` either takes a ticket and calls its `complete` exactly once, later, unless the ticket is
  cancelled; or it raises and has taken nothing.
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
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from stoker.arena import AWAKE_NS, LONE_ROWS, Arena, Outcome
from stoker.errors import (
    DeviceLost,
    DeviceOutOfMemory,
    InvalidInput,
    ModelFailed,
    OutputTooLarge,
    Overloaded,
    StokerError,
)
from stoker.ticket import Feed, Rows, Slice, Ticket

__all__ = ["Exchange"]

logger = logging.getLogger(__name__)

_NEVER_NS: Final = (1 << 63) - 1
_READ_BYTES: Final = 1 << 14
_MAX_RETRY_AFTER_S: Final = 60


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
        self._hungry: deque[Ticket] = deque()
        self._share_rows = arena.capacity // 2
        self._slice_rows = max(1, arena.capacity // 8)
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
    def idle(self) -> bool:
        """Whether no request is in it."""
        return not self._hungry and len(self._free) == self.arena.capacity

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
        if count == 1:
            self._admit_one(ticket, rows)
        elif count > self._share_rows:
            self._start_feed(ticket, rows)
        else:
            self._admit(ticket, rows, count)

    def submit_body(self, ticket: Ticket, body: bytes) -> None:
        """Queue a request whose row is its whole body; otherwise like `submit`."""
        self._lease(ticket, 1)
        (number,) = ticket._numbers
        stored = self.arena.write_bytes("in", 0, number, body)
        assert stored, "bodies are limited to the row's size before they get here"
        self._deadline_ns[number] = ticket.deadline_ns
        self._enqueued_ns[number] = ticket.enqueued_ns = self._clock_ns()
        self._position[number] = 0
        self._enqueue(ticket)

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
        late = np.flatnonzero(self._deadline_ns_array <= now_ns).tolist()
        for number in late:
            ticket = self._tickets[number]
            if ticket is None or not ticket._open:
                self._deadline_ns[number] = _NEVER_NS if ticket is None else 0
                continue
            ticket.fail(ticket.lateness(begun=self._has_begun(ticket, number)))
        for ticket in [ticket for ticket in self._hungry if ticket.deadline_ns <= now_ns]:
            self._hungry.remove(ticket)
            ticket.fail(ticket.lateness(begun=False))
        self._learn_rate(now_ns)

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
        tickets = {id(ticket): ticket for ticket in (*self._tickets, *self._hungry) if ticket is not None}
        self._hungry.clear()
        for ticket in tickets.values():
            ticket.fail(DeviceLost("The device process ended while it held this request.", retry_after_s=1))

    def give_up(self, ticket: Ticket) -> None:
        """Mark a ticket's rows as cancelled; the device skips those that have not started."""
        if ticket._feed is not None:
            slices, ticket._feed.slices = ticket._feed.slices, []
            for piece in slices:
                piece.cancel()
            return
        for number in ticket._numbers:
            if self._tickets[number] is ticket:
                self._deadline_ns[number] = 0

    def _admit_one(self, ticket: Ticket, rows: Rows) -> None:
        """`_admit` for one row, in one piece: most requests have one."""
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
        except FloatingPointError:
            self._free.append(number)
            raise _too_large_number() from None
        ticket.exchange = self
        ticket.rows = ticket._remaining = 1
        ticket._numbers = [number]
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

    def _admit(self, ticket: Ticket, rows: Rows, count: int) -> None:
        self._lease(ticket, count)
        # numpy would make an array of the list for each of its uses.
        index = np.array(ticket._numbers)
        try:
            for stored, values in zip(self.arena.inputs, rows, strict=True):
                stored[index] = values
        except FloatingPointError:
            # The frontend runs with numpy's overflow as an error: a cast to float32 that yields inf ends here.
            self._release(ticket)
            raise _too_large_number() from None
        ticket.enqueued_ns = now_ns = self._clock_ns()
        self.arena.deadline_ns[index] = ticket.deadline_ns
        self.arena.enqueued_ns[index] = now_ns
        self.arena.position[index] = np.arange(count)
        self._enqueue(ticket)

    def _lease(self, ticket: Ticket, count: int) -> None:
        if self.lost:
            raise _lost()
        free = self._free
        if len(free) < count:
            raise self.overloaded()
        ticket.exchange = self
        ticket.rows = count
        ticket._numbers = free[-count:]
        del free[-count:]

    def _release(self, ticket: Ticket) -> None:
        self._free.extend(ticket._numbers)

    def _enqueue(self, ticket: Ticket) -> None:
        """Take note of a ticket whose rows are whole, with their times."""
        numbers = ticket._numbers
        ticket._remaining = ticket.rows
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
        self._ring_for(ticket._numbers)
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
        try:
            sent = self._doorbell.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The device has ended. Answers that it gave before are still in the socket; after them comes EOF.
            sent = len(data)
        was_waiting, self._unsent = bool(self._unsent), data[sent:]
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
            elif ticket._remaining > 1:
                ticket._remaining -= 1
            elif ticket.rows == 1 and ticket._open and ticket.joins and not self._outcome[number]:
                together.append(ticket)
            else:
                self._finish(ticket)
        if together:
            self._finish_together(together)
        while self._hungry and len(self._free) >= self._slice_rows:
            self._feed_slice(self._hungry.popleft())

    def _finish(self, ticket: Ticket) -> None:
        """All rows are back: complete the ticket, then free them."""
        numbers = ticket._numbers
        if ticket._open:
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
        numbers = [ticket._numbers[0] for ticket in tickets]
        for ticket, number in zip(tickets, numbers, strict=True):
            ticket._open = False
            ticket.started_ns = self._started_ns[number]
            ticket.finished_ns = self._finished_ns[number]
            self._tickets[number] = None
        self._quick = tickets[0].finished_ns - tickets[0].enqueued_ns < AWAKE_NS
        try:
            tickets[0].complete_together(tickets, self.arena.outputs[0][numbers])
        except Exception:
            logger.exception("the completion of %d requests raised", len(tickets))
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

    def _start_feed(self, ticket: Ticket, rows: Rows) -> None:
        """Begin with two slices, so that one is computed while the next one waits."""
        if self.lost:
            raise _lost()
        if len(self._free) < self._slice_rows:
            raise self.overloaded()
        specs = self.arena.signature.inputs
        try:
            cast = [np.asarray(values, spec.dtype) for values, spec in zip(rows, specs, strict=True)]
        except FloatingPointError:
            raise _too_large_number() from None
        ticket.exchange = self
        ticket.rows = len(cast[0])
        ticket.enqueued_ns = self._clock_ns()
        ticket._feed = Feed(cast, self.arena, ticket.rows)
        self._feed_slice(ticket)
        if len(self._free) >= self._slice_rows:
            self._feed_slice(ticket)

    def _feed_slice(self, parent: Ticket) -> None:
        feed = parent._feed
        assert feed is not None, "only requests with a feed have slices"
        start, stop = feed.next_row, min(parent.rows, feed.next_row + self._slice_rows)
        if not parent._open or start == stop:
            return
        feed.next_row = stop
        piece = Slice(parent, start)
        feed.slices.append(piece)
        self._admit(piece, [values[start:stop] for values in feed.rows], stop - start)

    def collect(self, parent: Ticket, piece: Ticket, start: int) -> None:
        """Take the answer of a request's slice; complete the request with the last one."""
        feed = parent._feed
        assert feed is not None, "only requests with a feed have slices"
        if piece in feed.slices:
            feed.slices.remove(piece)
        if piece.error is not None:
            parent.fail(piece.error)
            return
        for index, spec in enumerate(self.arena.signature.outputs):
            if spec.variable:
                feed.texts[index][start : start + piece.rows] = piece.output_texts(index)
            else:
                feed.results[index][start : start + piece.rows] = piece.outputs()[index]
        feed.pending -= piece.rows
        parent.started_ns, parent.finished_ns = piece.started_ns, piece.finished_ns
        if feed.pending:
            # The slice's rows are freed after this call; the next slice takes them then.
            self._hungry.append(parent)
        elif parent._open:
            parent.settle()


def _lost() -> DeviceLost:
    return DeviceLost("The device process ended; it is being restarted.", retry_after_s=1)


def _too_large_number() -> InvalidInput:
    return InvalidInput("A number is too large for the model's input type.")


def _needs_range_check(dtype: str) -> bool:
    return np.dtype(dtype).kind in "iu" and dtype not in ("int64", "uint64")
