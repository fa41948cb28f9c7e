"""The frontend's side of an arena: leases rows, submits them, and completes requests whose rows are done.

The frontend sends the rows that it queued during one turn of its event loop in one `send` through the doorbell; the
device answers with the rows that are done. Beside the contract of `Exchange`:

- A row that a caller has given up stays leased until the device hands it back; then it is free.
- When the device process dies (EOF), every ticket in flight completes with `DeviceLost`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import numpy as np

from stoker.arena import AWAKE_NS, Arena
from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    DeviceLost,
    InvalidInput,
    Overloaded,
    Refusal,
    StokerError,
)
from stoker.gateway.rows.admission import TargetAdmission
from stoker.gateway.rows.doorbell import Doorbell, RowAnnouncer
from stoker.gateway.rows.page_reclaimer import PageReclaimer
from stoker.gateway.rows.row_headers import AnswerHeaders, RequestHeaders
from stoker.gateway.rows.row_inputs import RowInputs
from stoker.gateway.rows.row_leases import RowLeases, done_since
from stoker.gateway.rows.service_rate import ServiceRate
from stoker.gateway.rows.slices import SlicedTickets, SlicingExchange
from stoker.gateway.rows.ticket import BodyT, Decode, Exchange, Rows, Ticket
from stoker.gateway.rows.urgency import DEFAULT_URGENCY

logger = logging.getLogger(__name__)


def device_lost() -> DeviceLost:
    """Return the error for a request whose device process died while it had the rows."""
    return DeviceLost("The device process ended while it held this request.", retry_after_s=1)


class ArenaExchange(SlicingExchange):
    """Rows of one arena, on the frontend's side. Not thread-safe."""

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
        """Create it for one end of a doorbell; numpy has to be set to raise on overflow.

        Args:
            doorbell: The frontend's end; owned by the exchange from now on.
        """
        if np.geterr()["over"] != "raise":
            # Otherwise a number too large for float32 would silently become infinity.
            raise RuntimeError(
                "numpy has to raise where numbers overflow: call np.seterr(over='raise') before"
            )
        self.signature = arena.signature
        self.arena = arena
        self.admission = TargetAdmission(arena, clock_ns) if by_target else None
        self.slices = SlicedTickets(arena.capacity)
        self.doorbell = Doorbell(doorbell, loop, self._on_doorbell)
        self._on_lost = on_lost
        self._leases = RowLeases(arena.capacity)
        self._inputs = RowInputs(arena)
        self._request_headers = RequestHeaders(arena, clock_ns)
        self._answer_headers = AnswerHeaders(arena)
        self._announcer = RowAnnouncer(self.doorbell, self._leases, clock_ns, loop)
        specs = (*self.signature.inputs, *self.signature.outputs)
        has_pages = any(spec.variable for spec in specs)
        self._reclaimer = PageReclaimer(arena, clock_ns()) if has_pages else None
        self._rate = ServiceRate(clock_ns())

    @property
    def leased_rows(self) -> int:
        """Rows that requests hold now."""
        return self._leases.leased_rows

    @property
    def free_rows(self) -> int:
        """Rows that can be leased now."""
        return len(self._leases.free)

    @property
    def idle(self) -> bool:
        """Whether it holds no requests."""
        return not self.slices.tickets and not self._leases.leased_rows

    @property
    def expects_lone_row(self) -> bool:
        """Whether the next row is likely to be the only one."""
        return self._announcer.expects_lone_row

    def refusal(self, ticket: Ticket) -> StokerError | None:
        """The error that would be raised for any request now; None if a request may be read."""
        free = self._leases.free
        if not free or self._request_headers.exceeds_share(ticket, free):
            return self.overloaded()
        if self.admission is None:
            return None
        target_ns = ticket.target_ns or ticket.deadline_ns
        return self.admission.refusal(
            ticket.urgency or DEFAULT_URGENCY, target_ns, ticket.deadline_ns, alone=self.idle
        )

    def done_since(self, since_ns: int, most: int) -> list[int]:
        """Free rows that still hold a request and its answer; see `stoker.gateway.rows.row_leases.done_since`."""
        return done_since(self.arena, self._leases.free, since_ns, most)

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue a request's rows."""
        count = len(rows[0])
        self._inputs.check(rows)
        try:
            if count > 1 and self.admission is not None:
                target_ns = ticket.target_ns or ticket.deadline_ns
                self.admission.check_rows(ticket.urgency or DEFAULT_URGENCY, target_ns, count)
            if count == 1:
                self._admit_one(ticket, rows)
            elif count > self.slices.share_rows:
                self.slices.start(ticket, rows, self)
            else:
                self.admit(ticket, rows)
        except FloatingPointError:
            raise InvalidInput("A number is too large for the model's input type.") from None

    def submit_decoded(self, ticket: Ticket, body: BodyT, decode: Decode[BodyT]) -> None:
        """Queue the rows of a body; a single one is decoded into the next free row if that is possible."""
        inputs, free = self._inputs, self._leases.free
        memory = inputs.memory
        if memory is None or not free:
            self.submit(ticket, decode(body, None))
            return
        number, row_bytes = free[-1], inputs.row_bytes
        start = number * row_bytes
        try:
            rows = decode(body, memory[start : start + row_bytes])
            if rows:
                self.submit(ticket, rows)
            else:
                self._admit_one(ticket, None)
        except BaseException:
            self._answer_headers.forget(number)
            raise

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Queue a request whose row is its whole body."""
        self._lease(ticket, 1)
        (number,) = ticket.row_numbers
        try:
            if not self.arena.write_bytes("in", 0, number, body):
                room_bytes = self.signature.inputs[0].row_bytes
                raise BodyTooLarge(  # noqa: TRY301  # its row is returned here
                    f"The request takes {len(body) / 2**20:.4g} MiB as the model's input; "
                    f"{room_bytes / 2**20:.4g} MiB fit: send less at once, or raise max_body_mb."
                )
            ticket.claim(1)
        except BaseException:
            self._return(ticket)
            raise
        self._request_headers.write_one(ticket, number)
        self._enqueue(ticket)

    def overloaded(self) -> Overloaded:
        """The error for a request that finds no free row; its Retry-After is from the measured service rate."""
        leased_rows = self.leased_rows
        return Overloaded(
            f"All {self.arena.capacity} rows of this model's queue are taken; try again later.",
            refusal=Refusal(
                503, "overloaded", self._rate.retry_after_ms(leased_rows), rows_ahead=leased_rows
            ),
        )

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request that has missed its target, with a Retry-After if one is known."""
        return DeadlineExceeded() if self.admission is None else self.admission.missed(lasts_ns, rows)

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed, and return the memory of unused rows."""
        self.slices.sweep(now_ns)
        # Most of the time there are no requests, and this is called many times a second.
        for number in self._request_headers.expired(now_ns) if self.leased_rows else ():
            ticket = self._leases.tickets[number]
            if ticket is None:
                self._request_headers.clear_deadline(number)
            elif not ticket.is_open:
                self._request_headers.withdraw(number)
            else:
                self.fail_expired(ticket, number)
        self._rate.update(now_ns, self.leased_rows, self.rows_done)
        if self._reclaimer is not None:
            self._reclaimer.reclaim(self._leases.free, now_ns)

    def fail_expired(self, ticket: Ticket, number: int) -> None:
        """Fail a request whose deadline has passed."""
        # Only an entry script's time is limited; rows of numbers may have begun and still count as waiting.
        begun = self.signature.takes == "body" and self._answer_headers.has_begun(ticket, number)
        ticket.fail(ticket.timeout_error(begun=begun))

    def close(self) -> None:
        """Close it; requests in flight complete with `DeviceLost`."""
        if self.lost:
            return
        self.lost = True
        self._announcer.close()
        self.doorbell.close()
        for ticket in dict.fromkeys((*self.slices.tickets, *filter(None, self._leases.tickets))):
            ticket.fail(device_lost())
        # A ticket refers to its exchange: in a reference cycle only the garbage collector would free the arena.
        self._leases.forget_tickets()

    def cancel(self, ticket: Ticket) -> None:
        """Mark a ticket's rows as cancelled; the device skips those that have not started."""
        if ticket.sliced is not None:
            self.slices.cancel(ticket)
            return
        for number in ticket.row_numbers:
            if self._leases.tickets[number] is ticket:
                self._request_headers.withdraw(number)

    def _admit_one(self, ticket: Ticket, rows: Rows | None) -> None:
        """`admit` for one row, with fewer calls; `rows` is None if it is in the next free row already."""
        leases = self._leases
        free = leases.free
        if self.lost or not free:
            self.check_room(1)
        number = free[-1]
        try:
            if rows is not None:
                self._inputs.write_one(number, rows)
            if ticket.urgency is not None:
                ticket.claim(1)
        except BaseException:
            # The row may no longer hold the whole of its last request.
            self._answer_headers.forget(number)
            raise
        free.pop()
        ticket.exchange = self
        ticket.rows = ticket.rows_left = 1
        ticket.row_numbers = [number]
        leases.tickets[number] = ticket
        self._announcer.add_one(number, self._request_headers.write_one(ticket, number))

    def admit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue all rows of a request, or of a slice; see `SlicingExchange.admit`."""
        count = len(rows[0])
        self._lease(ticket, count)
        # numpy would convert the list to an array at each use.
        index = np.array(ticket.row_numbers)
        try:
            self._inputs.write(index, rows)
            ticket.claim(count)
        except BaseException:
            self._return(ticket)
            raise
        self._request_headers.write(ticket, index)
        self._enqueue(ticket)

    def check_room(self, count: int) -> None:
        """Raise Overloaded or DeviceLost if so many rows cannot be leased now."""
        if self.lost:
            raise DeviceLost("The device process ended; it is being restarted.", retry_after_s=1)
        if len(self._leases.free) < count:
            raise self.overloaded()

    def _lease(self, ticket: Ticket, count: int) -> None:
        self.check_room(count)
        ticket.exchange = self
        ticket.rows = count
        ticket.row_numbers = self._leases.take(count)

    def _return(self, ticket: Ticket) -> None:
        """Free rows that could not be queued; their contents may have been overwritten."""
        for number in ticket.row_numbers:
            self._answer_headers.forget(number)
        self._leases.release(ticket.row_numbers)

    def _enqueue(self, ticket: Ticket) -> None:
        """Record a ticket whose rows and headers are written."""
        ticket.rows_left = ticket.rows
        self._leases.record(ticket)
        self._announcer.add(ticket.row_numbers)

    def ring(self) -> None:
        """Tell the device now what has been queued; otherwise that happens at the end of the loop's turn."""
        if self._announcer.queued:
            self._announcer.ring()

    def _on_doorbell(self) -> None:
        numbers = self.doorbell.receive()
        if numbers is None:
            self.disconnect()
            return
        tickets, capacity, outcome = self._leases.tickets, self._leases.capacity, self._answer_headers.outcome
        self.rows_done += len(numbers)
        together: list[Ticket] = []
        for number in numbers:
            ticket = tickets[number] if 0 <= number < capacity else None
            if ticket is None:
                logger.error("the device handed back row %d, which nobody had queued", number)
            elif ticket.rows_left > 1:
                ticket.rows_left -= 1
            elif (
                len(numbers) > 1
                and ticket.rows == 1
                and ticket.is_open
                and ticket.joins
                and not outcome[number]
            ):
                together.append(ticket)
            else:
                self._finish(ticket)
        if together:
            self._finish_together(together)
        if self.slices.waiting:
            self.slices.queue_waiting()

    def _finish(self, ticket: Ticket) -> None:
        """Complete a ticket all of whose rows are back, then free them."""
        # A completed ticket may have been submitted again.
        numbers = ticket.row_numbers
        if ticket.is_open:
            self._answer_headers.read(ticket)
            self._announcer.is_fast = ticket.finished_ns - ticket.enqueued_ns < AWAKE_NS
            ticket.settle()
        if self._reclaimer is not None:
            for number in numbers:
                self.arena.give_back_pages(number)
        self._leases.release(numbers)

    def _finish_together(self, tickets: list[Ticket]) -> None:
        """`_finish` for tickets of one row each without errors."""
        numbers = [ticket.row_numbers[0] for ticket in tickets]
        for ticket in tickets:
            ticket.is_open = False
        self._answer_headers.read_together(tickets, numbers)
        self._announcer.is_fast = tickets[0].finished_ns - tickets[0].enqueued_ns < AWAKE_NS
        try:
            tickets[0].complete_together(tickets, self.arena.outputs[0].take(numbers, axis=0))
        except Exception:
            logger.exception("%d requests could not be completed together; now one by one", len(tickets))
            for ticket in tickets:
                ticket.settle()
        self._leases.release(numbers)

    def disconnect(self) -> None:
        """The device process has ended: close, and call `on_lost`."""
        if not self.lost:
            self.close()
            self._on_lost(self)
