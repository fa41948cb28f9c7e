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
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from stoker.arena import AWAKE_NS, LONE_ROWS, Arena, Outcome, push_numbers
from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    InvalidInput,
    ModelFailed,
    OutputTooLarge,
    Overloaded,
    Refusal,
    StokerError,
    TooManySequences,
    UnknownSequence,
    unexpected_error,
)
from stoker.gateway.rows.admission import TargetAdmission
from stoker.gateway.rows.bookkeeping import (
    PageReclaimer,
    ServiceRate,
    UrgencyColumns,
    check_ranges,
    done_since,
    narrow_ranges,
)
from stoker.gateway.rows.ticket import BodyT, Decode, Exchange, Rows, SlicedAnswer, Ticket
from stoker.gateway.rows.urgency import DEFAULT_URGENCY

logger = logging.getLogger(__name__)


def device_lost() -> DeviceLost:
    """Return the error for a request whose device process died while it had the rows."""
    return DeviceLost("The device process ended while it held this request.", retry_after_s=1)


def _row_error(arena: Arena, ticket: Ticket, number: int) -> StokerError:
    """Return the error for a row that the device has handed back without an answer."""
    outcome = arena.outcome[number]
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
    said = outcome == Outcome.REPORTED
    message = arena.read_bytes("out", 0, number).decode(errors="ignore") if said else ""
    return ModelFailed(error_id=error_id, message=message)


_READ_BYTES: Final = 1 << 14


class Doorbell:
    """The frontend's end of a stream socketpair that carries int32 row numbers in native byte order.

    Nothing blocks: numbers for which the socket has no room are sent when it is writable again.

    Args:
        end: The socket; owned by the doorbell from now on.

    Attributes:
        unsent: Bytes of numbers for which the socket had no room yet.
    """

    def __init__(
        self, end: socket.socket, loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None]
    ) -> None:
        self.socket = end
        self.unsent = b""
        self._partial = b""
        self._loop = loop
        end.setblocking(False)
        loop.add_reader(end.fileno(), on_readable)

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

    def receive(self) -> list[int] | None:
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


_NEVER_NS: Final = (1 << 63) - 1


class ArenaExchange(Exchange):
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
        signature = arena.signature
        self.signature = signature
        self.arena = arena
        self.admission = TargetAdmission(arena, clock_ns) if by_target else None
        self._clock_ns = clock_ns
        self._on_lost = on_lost
        self._loop = loop
        # The last item is leased first, so that few rows are touched under low load.
        self._free = list(range(arena.capacity - 1, -1, -1))
        self._tickets: list[Ticket | None] = [None] * arena.capacity
        self._queued: list[int] = []
        self.slices = SlicedTickets(arena.capacity)
        self._deadline_ns = arena.words("deadline_ns")
        self._enqueued_ns = arena.words("enqueued_ns")
        self._started_ns = arena.words("started_ns")
        self._finished_ns = arena.words("finished_ns")
        self._position = arena.words("position")
        self._outcome = arena.words("outcome")
        self._turn_ns = arena.words("turn_ns")
        self._turned = arena.words("turned")
        self._takes_turns = 0
        self._urgencies = UrgencyColumns(arena)
        self._lone_rows = 0
        self._is_fast = False
        """Whether answers come so soon that polling for them pays."""
        self._takes_bodies = signature.takes == "body"
        self._variable = any(spec.variable for spec in (*signature.inputs, *signature.outputs))
        self._ranges = narrow_ranges(signature.inputs)
        self._only_input = arena.only_input
        self._row_memory, self._row_bytes = arena.only_memory
        self._reclaimer = PageReclaimer(arena, clock_ns())
        self._rate = ServiceRate(clock_ns())
        arena.deadline_ns[:] = _NEVER_NS
        self.doorbell = Doorbell(doorbell, loop, self._on_doorbell)

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
        return not self.slices.tickets and len(self._free) == self.arena.capacity

    def refusal(self, ticket: Ticket) -> StokerError | None:
        """The error that would be raised for any request now; None if a request may be read."""
        if not self._free or (
            self._urgencies.has_callers and self._urgencies.exceeds_share(ticket, self._free)
        ):
            return self.overloaded()
        if self.admission is None:
            return None
        target_ns = ticket.target_ns or ticket.deadline_ns
        return self.admission.refusal(
            ticket.urgency or DEFAULT_URGENCY, target_ns, ticket.deadline_ns, alone=self.idle
        )

    def done_since(self, since_ns: int, most: int) -> list[int]:
        """Free rows that still hold a request and its answer; see `stoker.gateway.rows.bookkeeping.done_since`."""
        return done_since(self.arena, self._free, since_ns, most)

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue a request's rows."""
        count = len(rows[0])
        if self._ranges:
            check_ranges(self._ranges, rows)
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
        self._deadline_ns[number] = ticket.deadline_ns
        self._enqueued_ns[number] = ticket.enqueued_ns = self._clock_ns()
        self._position[number] = 0
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
        for number in np.flatnonzero(self.arena.deadline_ns <= now_ns).tolist() if self.leased_rows else ():
            ticket = self._tickets[number]
            if ticket is None or not ticket.is_open:
                self._deadline_ns[number] = _NEVER_NS if ticket is None else 0
                continue
            self.fail_expired(ticket, number)
        self._rate.update(now_ns, self.leased_rows, self.rows_done)
        if self._variable:
            self._reclaimer.reclaim(self._free, now_ns)

    def fail_expired(self, ticket: Ticket, number: int) -> None:
        """Fail a request whose deadline has passed; a start before it was queued is of the row's former request."""
        ticket.fail(
            ticket.timeout_error(begun=self._takes_bodies and self._started_ns[number] >= ticket.enqueued_ns)
        )

    def close(self) -> None:
        """Close it; requests in flight complete with `DeviceLost`."""
        if self.lost:
            return
        self.lost = True
        self.doorbell.close()
        for ticket in dict.fromkeys((*self.slices.tickets, *filter(None, self._tickets))):
            ticket.fail(device_lost())
        # A ticket refers to its exchange: in a reference cycle only the garbage collector would free the arena.
        self._tickets = [None] * self.arena.capacity

    def cancel(self, ticket: Ticket) -> None:
        """Mark a ticket's rows as cancelled; the device skips those that have not started."""
        if ticket.sliced is not None:
            self.slices.cancel(ticket)
            return
        for number in ticket.row_numbers:
            if self._tickets[number] is ticket:
                self._deadline_ns[number] = 0

    def _admit_one(self, ticket: Ticket, rows: Rows | None) -> None:
        """`admit` for one row, without further calls; `rows` is None if it is in the next free row already."""
        free = self._free
        if self.lost or not free:
            self.check_room(1)
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
        if ticket.urgency is not None or self._urgencies.is_written:
            self._urgencies.write(ticket)
        if len(free) < self.arena.capacity - 1:
            self._lone_rows = 0
        elif self._lone_rows < LONE_ROWS:
            self._lone_rows += 1
        else:
            # There is nothing to wait for in the rest of this turn.
            self.doorbell.ring(ticket.row_numbers)
            if self._is_fast:
                self._loop.call_soon(self._poll, ticket.enqueued_ns + AWAKE_NS)
            return
        if not self._queued:
            self._loop.call_soon(self.ring)
        self._queued.append(number)

    def _poll(self, until_ns: int) -> None:
        """Keep the event loop polling while the only row is likely to come back soon."""
        if self.leased_rows == 1 and not self.lost and self._clock_ns() < until_ns:
            self._loop.call_soon(self._poll, until_ns)

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
            self._return(ticket)
            raise
        ticket.enqueued_ns = now_ns = self._clock_ns()
        self.arena.deadline_ns[index] = ticket.deadline_ns
        self.arena.enqueued_ns[index] = now_ns
        self.arena.position[index] = np.arange(count)
        self._enqueue(ticket)

    def check_room(self, count: int) -> None:
        """Raise Overloaded or DeviceLost if so many rows cannot be leased now."""
        if self.lost:
            raise DeviceLost("The device process ended; it is being restarted.", retry_after_s=1)
        if len(self._free) < count:
            raise self.overloaded()

    def _lease(self, ticket: Ticket, count: int) -> None:
        self.check_room(count)
        free = self._free
        ticket.exchange = self
        ticket.rows = count
        ticket.row_numbers = free[-count:]
        del free[-count:]

    def _return(self, ticket: Ticket) -> None:
        """Free rows that could not be queued; what they held before may have been overwritten."""
        self.arena.finished_ns[ticket.row_numbers] = 0
        self._free += ticket.row_numbers

    def _enqueue(self, ticket: Ticket) -> None:
        """Record a ticket whose rows are written, with their times."""
        numbers = ticket.row_numbers
        ticket.rows_left = ticket.rows
        if ticket.urgency is not None or self._urgencies.is_written:
            self._urgencies.write(ticket)
        for number in numbers:
            self._tickets[number] = ticket
        if not self._queued:
            self._loop.call_soon(self.ring)
        self._queued += numbers

    def ring(self) -> None:
        """Tell the device now what has been queued; otherwise that happens at the end of the loop's turn."""
        if self._queued and not self.lost:
            numbers, self._queued = self._queued, []
            self.doorbell.ring(numbers)

    def _on_doorbell(self) -> None:
        numbers = self.doorbell.receive()
        if numbers is None:
            self.disconnect()
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
        if self.slices.waiting:
            self.slices.queue_waiting()

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
                    ticket.error = _row_error(self.arena, ticket, number)
                    break
            self._is_fast = ticket.finished_ns - ticket.enqueued_ns < AWAKE_NS
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
        self._is_fast = tickets[0].finished_ns - tickets[0].enqueued_ns < AWAKE_NS
        try:
            tickets[0].complete_together(tickets, self.arena.outputs[0].take(numbers, axis=0))
        except Exception:
            logger.exception("%d requests could not be completed together; now one by one", len(tickets))
            for ticket in tickets:
                ticket.settle()
        self._free += numbers

    def disconnect(self) -> None:
        """The device process has ended: close, and call `on_lost`."""
        if not self.lost:
            self.close()
            self._on_lost(self)


class _Slice(Ticket):
    """Some rows of a large request, from row `start` on."""

    __slots__ = ("_owner", "parent", "start")

    def __init__(self, owner: SlicedTickets, parent: Ticket, start: int) -> None:
        super().__init__(parent.deadline_ns)
        self._owner = owner
        self.parent = parent
        self.start = start
        self.urgency = parent.urgency

    @property
    def target_ns(self) -> int:
        """The target of the whole request."""
        return self.parent.target_ns

    def claim(self, rows: int) -> None:
        """Does nothing: the whole request has claimed its rows from the quota."""

    def complete(self) -> None:
        """Pass the slice's answer to the whole request."""
        self._owner.collect(self)


class _SlicedTicket:
    """The state of a large request: the rows that are still to be queued, and the slices in the arena."""

    __slots__ = ("answer", "exchange", "next_row", "rows", "rows_left", "slices")

    def __init__(self, exchange: ArenaExchange, rows: Rows) -> None:
        self.exchange = exchange
        self.rows = rows
        self.next_row = 0
        self.rows_left = len(rows[0])
        self.slices: list[_Slice] = []
        self.answer = SlicedAnswer(exchange.signature, self.rows_left, rows)


class SlicedTickets:
    """The requests with more rows than one request may hold at once: they go through the arena slice by slice.

    A large request has at most two slices in the arena: one that is computed, and one that waits. A slice is an
    eighth of the arena, so the request holds at most a quarter and leaves room for others.

    Attributes:
        share_rows: The most rows that a request may have to be queued as a whole; larger ones are sliced.
        waiting: The large requests that wait for free rows for their next slice.
    """

    def __init__(self, capacity: int) -> None:
        self.share_rows = capacity // 2
        self._slice_rows = max(1, capacity // 8)
        self.waiting: deque[Ticket] = deque()
        # Only these refer to the exchange: in a reference cycle with it, only the garbage collector would free the
        # arena of a device process that has ended.
        self._sliced: dict[Ticket, _SlicedTicket] = {}

    @property
    def tickets(self) -> list[Ticket]:
        """The large requests in progress."""
        return list(self._sliced)

    def start(self, ticket: Ticket, rows: Rows, exchange: ArenaExchange) -> None:
        """Queue the first two slices, or one if there is no room for two; raises what `ArenaExchange.admit` does."""
        exchange.check_room(self._slice_rows)
        specs = exchange.signature.inputs
        # All rows are converted now: a number that does not fit must not be found when half of the rows have been
        # run.
        sliced = _SlicedTicket(
            exchange, [np.asarray(values, spec.dtype) for values, spec in zip(rows, specs, strict=True)]
        )
        ticket.claim(sliced.rows_left)
        ticket.exchange = exchange
        ticket.rows = sliced.rows_left
        ticket.enqueued_ns = self._queue_slice(ticket, sliced).enqueued_ns
        ticket.sliced = sliced.answer
        self._sliced[ticket] = sliced
        if sliced.next_row < ticket.rows:
            self.waiting.append(ticket)
            self.queue_waiting()

    def queue_waiting(self) -> None:
        """Queue further slices of waiting requests, as far as there is room."""
        while self.waiting:
            ticket = self.waiting[0]
            sliced = self._sliced[ticket]
            if sliced.exchange.free_rows < self._slice_rows:
                return
            self.waiting.popleft()
            try:
                self._queue_slice(ticket, sliced)
            except Exception as error:  # noqa: BLE001  # a lack of memory, say
                _fail_unforeseen(ticket, error)

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed."""
        for ticket in self.tickets:
            if ticket.deadline_ns <= now_ns:
                ticket.fail(ticket.timeout_error(begun=False))

    def cancel(self, ticket: Ticket) -> None:
        """Queue no more slices of a request, and cancel those that have not started."""
        sliced = self._sliced.pop(ticket, None)
        if sliced is not None:
            self._stop_waiting(ticket)
            for piece in sliced.slices:
                piece.cancel()

    def collect(self, piece: _Slice) -> None:
        """Add the answer of a slice; completes the request with its last one."""
        ticket = piece.parent
        sliced = self._sliced[ticket]
        sliced.slices.remove(piece)
        if piece.error is not None:
            ticket.fail(piece.error)
            return
        try:
            sliced.answer.put(piece, piece.start)
        except Exception as error:  # noqa: BLE001  # a lack of memory, say
            _fail_unforeseen(ticket, error)
            return
        sliced.rows_left -= piece.rows
        ticket.started_ns, ticket.finished_ns = piece.started_ns, piece.finished_ns
        ticket.turn_ns = piece.turn_ns
        if not sliced.rows_left:
            del self._sliced[ticket]
            ticket.settle()
        elif sliced.next_row < ticket.rows:
            # The slice's rows are freed after this call, and the next slice takes them then.
            self.waiting.append(ticket)

    def _queue_slice(self, ticket: Ticket, sliced: _SlicedTicket) -> _Slice:
        start, stop = sliced.next_row, min(ticket.rows, sliced.next_row + self._slice_rows)
        piece = _Slice(self, ticket, start)
        sliced.exchange.admit(piece, [values[start:stop] for values in sliced.rows])
        sliced.next_row = stop
        sliced.slices.append(piece)
        if stop == ticket.rows:
            # Both slices may have come back before this one, the last, was queued.
            self._stop_waiting(ticket)
        return piece

    def _stop_waiting(self, ticket: Ticket) -> None:
        self.waiting = deque(other for other in self.waiting if other is not ticket)


def _fail_unforeseen(ticket: Ticket, error: Exception) -> None:
    """Fail a request after an internal error, which would otherwise leave it unanswered."""
    logger.error("a slice of a large request failed", exc_info=error)
    ticket.fail(unexpected_error(error))
