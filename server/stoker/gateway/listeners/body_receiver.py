"""Long bodies are received straight into the memory in which they are read (decision 36).

A loop that passes `bytes` to a protocol copies a body twice before it is gathered: from its read buffer, and from the
parser. So a connection with a long body hands its transport to a receiver, which lets the kernel write into the body
itself, and takes it back for a shorter request. For short bodies the receiver would be slower: the loop asks it for
memory before each read.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
from typing import Any, Final, Protocol

STRAIGHT_BODY_BYTES: Final = 1 << 18
"""Bodies from this size on are received so; for bodies of half the size it saves nothing."""

# One for all connections: it is emptied before the loop reads again. A head fits into it.
_CHUNK: Final = memoryview(bytearray(1 << 14))

_new_bytes: Final = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)


def allocate_body(length: int) -> io.BytesIO:
    """Return a stream over uninitialized memory, all of which has to be written before its value is read.

    Clearing the memory would take as long as copying the body, and the system need not provide unwritten pages.
    """
    return io.BytesIO(_new_bytes(None, length))


class BodyOwner(Protocol):
    """A connection whose body is received; see `DirectProtocol`."""

    transport: Any
    in_head: bool

    def data_received(self, data: bytes) -> None:
        """Handle bytes that are not received straight."""

    def body_grew(self, more_bytes: int) -> bool:
        """Count bytes of the body; False if there is no room for them and the request was refused."""

    def on_message_complete(self) -> None:
        """Handle the end of the body."""

    def eof_received(self) -> bool | None:
        """Handle the end of the bytes that the caller sends."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""

    def pause_writing(self) -> None:
        """Stop writing."""

    def resume_writing(self) -> None:
        """Continue to write."""


class BodyReceiver(asyncio.BufferedProtocol):
    """The protocol of a connection's transport while its requests have long bodies."""

    def __init__(self, connection: BodyOwner) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._loop = asyncio.get_running_loop()
        self._holds_transport = False
        self._memory: memoryview | None = None
        self._arrived_bytes = 0

    def receive(self, body: io.BytesIO) -> None:
        """Receive the rest of a body, behind what came with the head; nothing else may hold its memory meanwhile."""
        self._memory, self._arrived_bytes = body.getbuffer(), body.tell()
        if not self._holds_transport:
            self._holds_transport = True
            self._hand_over(self)

    def _hand_over(self, protocol: BodyReceiver | BodyOwner) -> None:
        """Set the protocol of the transport: uvloop uses the new one after reading has been started again."""
        transport = self._transport
        transport.set_protocol(protocol)
        if transport.is_reading():
            transport.pause_reading()
            transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes, which ends with the body."""
        del sizehint
        self._finish()
        return _CHUNK if self._memory is None else self._memory[self._arrived_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that were read into the memory."""
        connection, memory = self._connection, self._memory
        if memory is None:
            connection.data_received(bytes(_CHUNK[:nbytes]))
            if self._memory is None and not connection.in_head:
                # This request is not received straight.
                self._holds_transport = False
                self._hand_over(connection)
            return
        self._arrived_bytes += nbytes
        if not connection.body_grew(nbytes):
            self._memory = None
        elif self._arrived_bytes == len(memory):
            # The loop holds the memory until this returns. Mostly it asks for more first, which finishes the body.
            self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        """Hand over the body once it is complete."""
        if self._memory is not None and self._arrived_bytes == len(self._memory):
            # A stream whose memory is exported would copy it.
            self._memory = None
            self._connection.on_message_complete()

    def eof_received(self) -> bool | None:
        """Handle the end of the bytes that the caller sends."""
        self._finish()
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._memory = None
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop writing: the caller does not read its answers."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Continue to write."""
        self._connection.resume_writing()
