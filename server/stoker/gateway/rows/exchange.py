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
from collections.abc import Callable
from typing import Final

import numpy as np

from stoker.arena import AWAKE_NS, LONE_ROWS, Arena
from stoker.errors import DeadlineExceeded, InvalidInput, Overloaded, StokerError
from stoker.gateway.rows.cooling import Cooling
from stoker.gateway.rows.doorbell import Doorbell
from stoker.gateway.rows.failures import all_taken, body_too_large, device_lost, device_restarting, row_error
from stoker.gateway.rows.feeding import Feeding
from stoker.gateway.rows.past_rows import done_since, without_past
from stoker.gateway.rows.ranges import check_overflows_raise, check_ranges, ranges_of
from stoker.gateway.rows.service_rate import ServiceRate
from stoker.gateway.rows.telling import Telling
from stoker.gateway.rows.ticket import BodyT, Decode, Rows, Ticket
from stoker.gateway.rows.timeliness import Timeliness
from stoker.gateway.rows.wakefulness import Wakefulness

__all__ = ["Exchange"]

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
