"""The frontend's side of an arena: leases rows, submits them, and completes requests whose rows are done.

The frontend sends the rows that it queued during one turn of its event loop in one `send` through the doorbell; the
device answers with the rows that are done. Contract:

- `submit` either takes a ticket and calls its `complete` exactly once, later, unless the ticket is cancelled; or it
  raises and has taken nothing. What `complete` raises is only logged: `complete` itself has to make sure that the
  caller gets an answer.
- Nothing here blocks.
- A row that a caller has given up stays leased until the device hands it back; then it is free.
- When the device process dies (EOF), every ticket in flight completes with `DeviceLost`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from stoker.arena import AWAKE_NS, LONE_ROWS, Arena, push_numbers
from stoker.errors import DeadlineExceeded, InvalidInput, Overloaded, StokerError
from stoker.gateway.rows.failures import all_taken, body_too_large, device_lost, device_restarting, row_error
from stoker.gateway.rows.feeding import Feeding
from stoker.gateway.rows.past_rows import done_since, without_past
from stoker.gateway.rows.ranges import check_overflows_raise, check_ranges, ranges_of
from stoker.gateway.rows.service_rate import ServiceRate
from stoker.gateway.rows.ticket import BodyT, Decode, Rows, Ticket
from stoker.gateway.rows.timeliness import Timeliness
from stoker.gateway.rows.urgency import USUAL
from stoker.gateway.rows.wakefulness import Wakefulness
from stoker.placed import CALLER_MASK

__all__ = ["Cooling", "Doorbell", "Exchange", "Telling"]


# Caller and urgency of the rows of an arena: written from the first request on that has any.
#
# So the number of rows that each caller holds is known, and no caller may take all.


_FIRST: Final = 3
"""The first of the columns for caller and urgency."""
_PLACED: Final = 2
"""Which of these columns holds the caller."""
_MOST: Final = 2
"""A caller must hold fewer rows than this many times the free rows."""
_COUNTS: Final = 64
"""Rows are counted again when a 64th of them has been leased or freed."""


class Telling:
    """The frontend's side of the caller and urgency columns of one arena.

    Attributes:
        begun: Whether the columns are written; from then on they are for each request.
        several: Whether a request of a named caller has come.
    """

    __slots__ = ("_columns", "_counted_free", "_held", "_told", "begun", "several")

    def __init__(self, arena: Arena) -> None:
        self.begun = self.several = False
        self._held, self._counted_free = np.zeros(1, np.int64), -len(arena.queued)
        self._columns = arena.queued[:, _FIRST:]
        self._told = arena.told

    def tell(self, ticket: Ticket) -> None:
        """Write caller and urgency of a ticket's rows, before the device is told of them."""
        if not self.begun:
            # Rows that the device already has were queued without them.
            self._columns[:] = (0, 1, USUAL.placed)
            self._told[0] = self.begun = True
        urgency = ticket.urgency or USUAL
        self._columns[ticket.row_numbers] = (ticket.target_ns, ticket.rows, urgency.placed)
        if urgency.caller.number:
            self.several = True

    def crowds(self, ticket: Ticket, free: Sequence[int]) -> bool:
        """Whether a ticket's caller holds at least twice as many rows as are free, where there are several callers.

        So a third of the rows remains for others, and a caller that arrives during another one's flood finds some.

        Args:
            ticket: A request that has no rows yet.
            free: The numbers of the free rows.
        """
        capacity = len(self._columns)
        if len(free) * (_MOST + 1) >= capacity:
            return False
        if abs(len(free) - self._counted_free) * _COUNTS >= capacity:
            taken = np.ones(capacity, bool)
            taken[np.array(free, np.int64)] = False
            self._held = np.bincount(self._columns[taken, _PLACED] & CALLER_MASK)
            self._counted_free = len(free)
        caller = (ticket.urgency or USUAL).caller.number
        return caller < len(self._held) and int(self._held[caller]) >= _MOST * len(free)


# The frontend's end of a doorbell: sends the numbers of queued rows, and receives those of done rows.
#
# Nothing here blocks. Numbers for which the socket has no room are sent when it is writable again.


_READ_BYTES: Final = 1 << 14


class Doorbell:
    """One end of a stream socketpair that carries int32 row numbers in native byte order.

    Args:
        end: The socket; owned by the doorbell from now on.
        loop: The event loop.
        on_rung: Called by the loop when there are numbers for `hear`.

    Attributes:
        socket: The end.
        unsent: Bytes of numbers for which the socket had no room yet.
    """

    def __init__(
        self, end: socket.socket, loop: asyncio.AbstractEventLoop, on_rung: Callable[[], None]
    ) -> None:
        self.socket = end
        self.unsent = b""
        self._partial = b""
        self._loop = loop
        end.setblocking(False)
        loop.add_reader(end.fileno(), on_rung)

    def ring(self, numbers: list[int]) -> None:
        """Send row numbers, now or as soon as there is room."""
        data = array("i", numbers).tobytes()
        if self.unsent:
            self.unsent += data
            return
        self.unsent = push_numbers(self.socket, data)
        if self.unsent:
            self._loop.add_writer(self.socket.fileno(), self._go_on)

    def _go_on(self) -> None:
        self.unsent = push_numbers(self.socket, self.unsent)
        if not self.unsent:
            self._loop.remove_writer(self.socket.fileno())

    def hear(self) -> list[int] | None:
        """Return the row numbers that have arrived; None if the other end is closed."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        if self._partial or len(data) % 4:
            data = self._partial + data
            whole = len(data) - len(data) % 4
            data, self._partial = data[:whole], data[whole:]
        return memoryview(data).cast("i").tolist()

    def close(self) -> None:
        """Remove the socket from the loop, and close it."""
        self._loop.remove_reader(self.socket.fileno())
        if self.unsent:
            self._loop.remove_writer(self.socket.fileno())
        self.socket.close()


# Returns the memory of rows that a burst of load has used and that have not been needed since.


_COOLING_NS: Final = 1_000_000_000
_WARM_ROWS: Final = 64
"""This many rows beside those in use keep their memory."""


class Cooling:
    """Returns the memory of an arena's free rows to the system, one row at a time.

    Args:
        arena: The rows.
        now_ns: The time on the exchange's clock.
    """

    def __init__(self, arena: Arena, now_ns: int) -> None:
        self._arena = arena
        self._cold_rows, self._untouched_rows = 0, arena.capacity
        self._since_ns = now_ns

    def cool(self, free: list[int], now_ns: int) -> None:
        """Return the memory of one row that has not been needed for a second.

        Args:
            free: The free rows; they are leased from the end of the list, and put back there.
            now_ns: The time on the exchange's clock.
        """
        self._untouched_rows = min(self._untouched_rows, len(free))
        if now_ns - self._since_ns >= _COOLING_NS:
            self._cold_rows = max(0, self._untouched_rows - _WARM_ROWS)
            self._untouched_rows, self._since_ns = len(free), now_ns
        if self._cold_rows and not self._arena.give_back_kept_pages(free[: self._cold_rows]):
            self._cold_rows = 0


logger = logging.getLogger(__name__)

_NEVER_NS: Final = (1 << 63) - 1


class Exchange:
    """Rows of one arena, on the frontend's side. Belongs to one event loop; not thread-safe.

    Attributes:
        timeliness: Refuses requests that would be late; None if all are accepted while there are free rows.
    """

    def __init__(
        self,
        arena: Arena,
        doorbell: socket.socket,
        *,
        clock_ns: Callable[[], int],
        on_lost: Callable[[Exchange], None],
        loop: asyncio.AbstractEventLoop,
        by_target: bool = False,
    ) -> None:
        """Create it for one end of a doorbell.

        Args:
            arena: The rows.
            doorbell: The frontend's end; owned by the exchange from now on.
            clock_ns: `time.monotonic_ns`.
            on_lost: Called once if the device process ends.
            loop: The event loop.
            by_target: Whether requests are refused that are expected to miss their target.

        Raises:
            RuntimeError: numpy is not set to raise on overflow in this context.
        """
        check_overflows_raise()
        self.arena = arena
        self.lost, self.rows_done = False, 0
        self.timeliness = Timeliness(arena, clock_ns) if by_target else None
        self._clock_ns, self._on_lost, self._loop = clock_ns, on_lost, loop
        # The last item is leased first, so that few rows are touched under low load.
        self._free = list(range(arena.capacity - 1, -1, -1))
        self._tickets: list[Ticket | None] = [None] * arena.capacity
        self._queued, self._feeding = list[int](), Feeding(arena)
        self._deadline_ns, self._enqueued_ns = arena.words("deadline_ns"), arena.words("enqueued_ns")
        self._position, self._outcome = arena.words("position"), arena.words("outcome")
        self._started_ns, self._finished_ns = arena.words("started_ns"), arena.words("finished_ns")
        self._turn_ns, self._turned, self._takes_turns = arena.words("turn_ns"), arena.words("turned"), 0
        self._telling = Telling(arena)
        self._lone_rows, self._wakefulness = 0, Wakefulness(loop, clock_ns)
        self._bodies = arena.signature.takes == "body"
        self._variable = any(spec.variable for spec in (*arena.signature.inputs, *arena.signature.outputs))
        self._ranges, self._only_input = ranges_of(arena.signature.inputs), arena.only_input
        self._row_memory, self._row_bytes = arena.only_memory
        self._cooling, self._rate = Cooling(arena, clock_ns()), ServiceRate(clock_ns())
        arena.deadline_ns[:] = _NEVER_NS
        self._doorbell = Doorbell(doorbell, loop, self._on_doorbell)

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
        """Whether it holds no requests."""
        return not self._feeding.tickets and len(self._free) == self.arena.capacity

    def refusal(self, ticket: Ticket) -> StokerError | None:
        """The error that would be raised for any request now; None if a request may be read."""
        if not self._free or (self._telling.several and self._telling.crowds(ticket, self._free)):
            return self.overloaded()
        return None if self.timeliness is None else self.timeliness.refusal(ticket, alone=self.idle)

    def done_since(self, since_ns: int, most: int) -> list[int]:
        """Free rows that still hold a request and its answer; see `stoker.gateway.rows.past_rows.done_since`."""
        return done_since(self.arena, self._free, since_ns, most)

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
        if self._ranges:
            check_ranges(self._ranges, rows)
        try:
            if count > 1 and self.timeliness is not None:
                self.timeliness.check(ticket, count)
            if count == 1:
                self._admit_one(ticket, rows)
            elif count > self._feeding.share_rows:
                self._feeding.start(ticket, rows, self)
            else:
                self.admit(ticket, rows)
        except FloatingPointError:
            raise InvalidInput("A number is too large for the model's input type.") from None

    def submit_decoded(self, ticket: Ticket, body: BodyT, decode: Decode[BodyT]) -> None:
        """Queue the rows of a body, a single one perhaps without a copy; otherwise like `submit`."""
        if self._row_memory is None or not self._free:
            self.submit(ticket, decode(body, None))
            return
        number = self._free[-1]
        start = number * self._row_bytes
        try:
            rows = decode(body, self._row_memory[start : start + self._row_bytes])
            if rows:
                self.submit(ticket, rows)
            else:
                self._admit_one(ticket, None)
        except BaseException:
            self._finished_ns[number] = 0
            raise

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Queue a request whose row is its whole body; otherwise like `submit`.

        Raises:
            BodyTooLarge: It is longer than a row.
        """
        self._lease(ticket, 1)
        (number,) = ticket.row_numbers
        try:
            if not self.arena.write_bytes("in", 0, number, body):
                raise body_too_large(self.arena, body)  # noqa: TRY301  # its row is given back here
            ticket.claim(1)
        except BaseException:
            self._free += without_past(self.arena, ticket.row_numbers)
            raise
        self._deadline_ns[number] = ticket.deadline_ns
        self._enqueued_ns[number] = ticket.enqueued_ns = self._clock_ns()
        self._position[number] = 0
        self._enqueue(ticket)

    def overloaded(self) -> Overloaded:
        """The error for a request that finds no free row; its Retry-After is from the measured service rate."""
        return all_taken(self.arena, self._rate, self.leased_rows)

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request that has missed its target, with a Retry-After if one is known."""
        return DeadlineExceeded() if self.timeliness is None else self.timeliness.missed(lasts_ns, rows)

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed; call this every few dozen milliseconds."""
        self._feeding.sweep(now_ns)
        # Most of the time there are no requests, and this is called many times a second.
        for number in np.flatnonzero(self.arena.deadline_ns <= now_ns).tolist() if self.leased_rows else ():
            ticket = self._tickets[number]
            if ticket is None or not ticket.is_open:
                self._deadline_ns[number] = _NEVER_NS if ticket is None else 0
                continue
            self.fail_late(ticket, number)
        self._rate.learn(now_ns, self.leased_rows, self.rows_done)
        if self._variable:
            self._cooling.cool(self._free, now_ns)

    def fail_late(self, ticket: Ticket, number: int) -> None:
        """Fail a request whose deadline has passed; a start before it was queued is of the row's former request."""
        ticket.fail(ticket.lateness(begun=self._bodies and self._started_ns[number] >= ticket.enqueued_ns))

    def close(self) -> None:
        """Close it; requests in flight complete with `DeviceLost`."""
        if self.lost:
            return
        self.lost = True
        self._doorbell.close()
        for ticket in dict.fromkeys((*self._feeding.tickets, *filter(None, self._tickets))):
            ticket.fail(device_lost())
        # A ticket refers to its exchange: in a reference cycle only the garbage collector would free the arena.
        self._tickets = [None] * self.arena.capacity

    def give_up(self, ticket: Ticket) -> None:
        """Mark a ticket's rows as cancelled; the device skips those that have not started."""
        if ticket.sliced is not None:
            self._feeding.give_up(ticket)
            return
        for number in ticket.row_numbers:
            if self._tickets[number] is ticket:
                self._deadline_ns[number] = 0

    def _admit_one(self, ticket: Ticket, rows: Rows | None) -> None:
        """`admit` for one row, without further calls; `rows` is None if it is in the next free row already."""
        if self.lost:
            raise device_restarting()
        free = self._free
        if not free:
            raise self.overloaded()
        number = free[-1]
        try:
            if rows is not None and self._only_input is not None:
                self._only_input[number] = rows[0]
            elif rows is not None:
                for stored, values in zip(self.arena.inputs, rows, strict=True):
                    stored[number] = values[0]
            if ticket.urgency is not None:
                ticket.claim(1)
        except BaseException:
            # The row may no longer hold the whole of its last request.
            self._finished_ns[number] = 0
            raise
        free.pop()
        ticket.exchange = self
        ticket.rows = ticket.rows_left = 1
        ticket.row_numbers = [number]
        self._tickets[number] = ticket
        self._deadline_ns[number] = ticket.deadline_ns
        self._position[number] = 0
        self._enqueued_ns[number] = ticket.enqueued_ns = self._clock_ns()
        if ticket.urgency is not None or self._telling.begun:
            self._telling.tell(ticket)
        if len(free) < self.arena.capacity - 1:
            self._lone_rows = 0
        elif self._lone_rows < LONE_ROWS:
            self._lone_rows += 1
        else:
            # There is nothing to wait for in the rest of this turn.
            self._doorbell.ring(ticket.row_numbers)
            self._wakefulness.begin(self, ticket.enqueued_ns)
            return
        if not self._queued:
            self._loop.call_soon(self.ring)
        self._queued.append(number)

    def admit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue all rows of a request, or of a slice; their integers must have been checked to fit the inputs.

        Raises what `submit` does, but FloatingPointError where a number does not fit the input's dtype.
        """
        count = len(rows[0])
        self._lease(ticket, count)
        # numpy would convert the list to an array at each use.
        index = np.array(ticket.row_numbers)
        try:
            for stored, values in zip(self.arena.inputs, rows, strict=True):
                stored[index] = values
            ticket.claim(count)
        except BaseException:
            self._free += without_past(self.arena, ticket.row_numbers)
            raise
        ticket.enqueued_ns = now_ns = self._clock_ns()
        self.arena.deadline_ns[index] = ticket.deadline_ns
        self.arena.enqueued_ns[index] = now_ns
        self.arena.position[index] = np.arange(count)
        self._enqueue(ticket)

    def check_room(self, count: int) -> None:
        """Raise Overloaded or DeviceLost if so many rows cannot be leased now."""
        if self.lost:
            raise device_restarting()
        if len(self._free) < count:
            raise self.overloaded()

    def _lease(self, ticket: Ticket, count: int) -> None:
        self.check_room(count)
        free = self._free
        ticket.exchange = self
        ticket.rows = count
        ticket.row_numbers = free[-count:]
        del free[-count:]

    def _enqueue(self, ticket: Ticket) -> None:
        """Record a ticket whose rows are written, with their times."""
        numbers = ticket.row_numbers
        ticket.rows_left = ticket.rows
        if ticket.urgency is not None or self._telling.begun:
            self._telling.tell(ticket)
        for number in numbers:
            self._tickets[number] = ticket
        if not self._queued:
            self._loop.call_soon(self.ring)
        self._queued += numbers

    def ring(self) -> None:
        """Tell the device now what has been queued; otherwise that happens at the end of the loop's turn."""
        if self._queued and not self.lost:
            numbers, self._queued = self._queued, []
            self._doorbell.ring(numbers)

    def _on_doorbell(self) -> None:
        numbers = self._doorbell.hear()
        if numbers is None:
            self.lose()
            return
        tickets, capacity = self._tickets, self.arena.capacity
        self.rows_done += len(numbers)
        self._takes_turns = self._turned[0]
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
        """Complete a ticket all of whose rows are back, then free them."""
        numbers = ticket.row_numbers
        if ticket.is_open:
            last = numbers[-1]
            ticket.started_ns = self._started_ns[last]
            ticket.finished_ns = self._finished_ns[last]
            if self._takes_turns:
                ticket.note_turn(self._turn_ns[last])
            for number in numbers:
                if self._outcome[number]:
                    ticket.error = row_error(self.arena, ticket, number)
                    break
            self._wakefulness.quick = ticket.finished_ns - ticket.enqueued_ns < AWAKE_NS
            ticket.settle()
        for number in numbers:
            self._tickets[number] = None
            if self._variable:
                self.arena.give_back_pages(number)
        self._free += numbers

    def _finish_together(self, tickets: list[Ticket]) -> None:
        """`_finish` for tickets of one row each without errors."""
        numbers = [ticket.row_numbers[0] for ticket in tickets]
        for ticket, number in zip(tickets, numbers, strict=True):
            ticket.is_open = False
            ticket.started_ns = self._started_ns[number]
            ticket.finished_ns = self._finished_ns[number]
            if self._takes_turns:
                ticket.note_turn(self._turn_ns[number])
            self._tickets[number] = None
        self._wakefulness.quick = tickets[0].finished_ns - tickets[0].enqueued_ns < AWAKE_NS
        try:
            tickets[0].complete_together(tickets, self.arena.outputs[0].take(numbers, axis=0))
        except Exception:
            logger.exception("%d requests could not be completed together; now one by one", len(tickets))
            for ticket in tickets:
                ticket.settle()
        self._free += numbers

    def lose(self) -> None:
        """The device process has ended: close, and call `on_lost`."""
        if not self.lost:
            self.close()
            self._on_lost(self)
