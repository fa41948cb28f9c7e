"""Receives long bodies straight into the memory in which they are read.

What a loop hands to a protocol as `bytes` has been copied twice before it is gathered: out of the memory into which
the loop reads, and out of the parser. So a connection whose request has a long body hands its transport over to a
receiver, which lets the kernel write into the body itself, and takes it back when a request comes that is shorter.
Short bodies are better off without: a receiver is asked for memory before each read.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
from typing import Final, Protocol

__all__ = ["STRAIGHT_BODY_BYTES", "BodyReceiver", "ReceivingConnection", "room_for"]

STRAIGHT_BODY_BYTES: Final = 1 << 18
"""Bodies from this size on are received so; of those of half the size it saves nothing."""

# One for all connections: what was read into it is taken out before the loop reads again. A head has room in it.
_CHUNK: Final = memoryview(bytearray(1 << 14))

_new_bytes: Final = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)


def room_for(length: int) -> io.BytesIO:
    """Return a stream over a body that has still to be written, all of it, before its value is taken.

    To clear that much memory takes as long as to copy it. Where nobody has written yet, the system need not give any.
    """
    return io.BytesIO(_new_bytes(None, length))


class ReceivingConnection(Protocol):
    """What a receiver knows of its connection."""

    transport: asyncio.Transport

    @property
    def in_head(self) -> bool:
        """Whether the head of a request has begun to arrive and is not complete."""

    def data_received(self, data: bytes) -> None:
        """Take what may be the head of a request, with the beginning of its body."""

    def body_grew(self, more_bytes: int) -> bool:
        """Take note that so much more of the body has arrived; False if there is no room, and it has been refused."""

    def on_message_complete(self) -> None:
        """Take the body, which is complete."""

    def eof_received(self) -> bool | None:
        """The caller sends no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""

    def pause_writing(self) -> None:
        """The caller does not take its answers."""

    def resume_writing(self) -> None:
        """It does again."""


class BodyReceiver(asyncio.BufferedProtocol):
    """The protocol of a connection's transport while its requests have long bodies.

    Args:
        connection: Whose it is.
    """

    def __init__(self, connection: ReceivingConnection) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._loop = asyncio.get_running_loop()
        self._holds_transport = False
        self._memory: memoryview | None = None
        self._arrived_bytes = 0

    def receive(self, body: io.BytesIO) -> None:
        """Receive the rest of a body.

        Args:
            body: It, at the place up to which it has come with its head, which is not its end. Nobody else may hold
                its memory until it is complete.
        """
        self._memory, self._arrived_bytes = body.getbuffer(), body.tell()
        if not self._holds_transport:
            self._holds_transport = True
            self._hand_over(self)

    def _hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """Let a protocol have what arrives from now on: uvloop reads as its last start of reading has told it to."""
        transport = self._transport
        transport.set_protocol(protocol)
        if transport.is_reading():
            transport.pause_reading()
            transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: no further than to the end of the body."""
        del sizehint
        self._finish()
        return _CHUNK if self._memory is None else self._memory[self._arrived_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of what was written there."""
        connection, memory = self._connection, self._memory
        if memory is None:
            connection.data_received(bytes(_CHUNK[:nbytes]))
            if self._memory is None and not connection.in_head:
                # Another request than the last one.
                self._holds_transport = False
                self._hand_over(connection)  # type: ignore[arg-type]  # it is one
            return
        self._arrived_bytes += nbytes
        if not connection.body_grew(nbytes):
            self._memory = None
        elif self._arrived_bytes == len(memory):
            # The loop holds the memory until this returns. Mostly it asks for more at once, and this comes too late.
            self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        """Hand over the body, if it is complete and that has not been done."""
        if self._memory is not None and self._arrived_bytes == len(self._memory):
            # A stream whose memory somebody holds would copy it.
            self._memory = None
            self._connection.on_message_complete()

    def eof_received(self) -> bool | None:
        """The caller sends no more."""
        self._finish()
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._memory = None
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller does not take its answers."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._connection.resume_writing()
