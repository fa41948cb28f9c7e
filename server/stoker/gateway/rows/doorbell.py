"""The frontend's end of a doorbell: sends the numbers of queued rows, and receives those of done rows.

Nothing here blocks. Numbers for which the socket has no room are sent when it is writable again.
"""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import Callable
from typing import Final

from stoker.arena import push_numbers

__all__ = ["Doorbell"]

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
