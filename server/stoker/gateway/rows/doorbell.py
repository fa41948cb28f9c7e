"""How a frontend tells a device process of queued rows, and hears of those that are done (decision 11)."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from stoker.arena import AWAKE_NS, LONE_ROWS, push_numbers

if TYPE_CHECKING:
    from stoker.gateway.rows.row_leases import RowLeases

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


class RowAnnouncer:
    """Announces queued rows to the device: a lone row at once, otherwise those of one turn of the loop together.

    Attributes:
        queued: Rows that the device does not know of yet.
        is_fast: Whether answers come so soon that polling for them pays.
    """

    __slots__ = (
        "_call_soon",
        "_clock_ns",
        "_doorbell",
        "_is_closed",
        "_leases",
        "_lone_rows",
        "is_fast",
        "queued",
    )

    def __init__(
        self,
        doorbell: Doorbell,
        leases: RowLeases,
        clock_ns: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._doorbell = doorbell
        self._leases = leases
        self._clock_ns = clock_ns
        self._call_soon = loop.call_soon
        self._lone_rows = 0
        self._is_closed = self.is_fast = False
        self.queued: list[int] = []

    @property
    def expects_lone_row(self) -> bool:
        """Whether the next row is likely to be alone: none is leased, and rows have been alone for a while."""
        return self._lone_rows >= LONE_ROWS and len(self._leases.free) == self._leases.capacity

    def add_one(self, number: int, now_ns: int) -> None:
        """Announce a row that was leased at this time: at once if rows have been alone for a while."""
        leases = self._leases
        if len(leases.free) < leases.capacity - 1:
            self._lone_rows = 0
        elif self._lone_rows < LONE_ROWS:
            self._lone_rows += 1
        else:
            # There is nothing to wait for in the rest of this turn.
            self._doorbell.ring([number])
            if self.is_fast:
                self._call_soon(self._poll, now_ns + AWAKE_NS)
            return
        if not self.queued:
            self._call_soon(self.ring)
        self.queued.append(number)

    def add(self, numbers: list[int]) -> None:
        """Announce rows at the end of the loop's turn."""
        if not self.queued:
            self._call_soon(self.ring)
        self.queued += numbers

    def ring(self) -> None:
        """Announce the queued rows now."""
        if self.queued and not self._is_closed:
            numbers, self.queued = self.queued, []
            self._doorbell.ring(numbers)

    def close(self) -> None:
        """Announce nothing more."""
        self._is_closed = True

    def _poll(self, until_ns: int) -> None:
        """Keep the event loop polling while the only row is likely to come back soon."""
        if self._leases.leased_rows == 1 and not self._is_closed and self._clock_ns() < until_ns:
            self._call_soon(self._poll, until_ns)
