"""Streams of the pieces that an entry script's `run` yields, from its process to a frontend, beside the answer's row.

The frontend listens on a socket, and the request has its name and a token. The script's process connects when it has
the first piece, sends the token, and waits until the frontend accepts: so the frontend knows the stream before the
row comes back. Each piece follows its length; after the last one the connection is closed, and then the row comes
back with the result of the call. Nothing is read ahead: a slow caller fills the sockets on the way, and `run` waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from collections.abc import Awaitable
from typing import Final, TypeVar

TOKEN_BYTES: Final = 16
_LENGTH: Final = struct.Struct("=I")
_ACCEPTED: Final = b"\n"
_BUFFER_BYTES: Final = 1 << 16
_ANSWER_S: Final = 10.0

_Result = TypeVar("_Result")


class CallerGone(Exception):
    """The caller does not want further pieces."""


def listening_socket() -> tuple[socket.socket, str]:
    """Return a socket on which a frontend listens for streams, and its abstract name, which no file has."""
    name = f"stoker-pieces-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listening.bind(f"\0{name}")
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        raise
    return listening, name


def new_address(name: str) -> tuple[bytes, str]:
    """Return a token that cannot be guessed, and the address of the stream for the script's process."""
    token = secrets.token_bytes(TOKEN_BYTES)
    return token, f"{name}/{token.hex()}"


def token_of(address: str) -> tuple[str, bytes]:
    """Return the name of the socket and the token of an address by `new_address`."""
    name, _, token = address.rpartition("/")
    return name, bytes.fromhex(token)


class PieceWriter:
    """The end of a stream in the script's process; it connects with the first piece.

    Args:
        timeout_s: How long a caller may take to make room for a piece.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def send(self, piece: bytes) -> None:
        """Send a piece.

        Raises:
            TimeoutError: The caller does not read.
            OSError: The stream is closed.
        """
        if self._socket is None:
            self._socket = self._connect()
        self._socket.sendall(_LENGTH.pack(len(piece)) + piece)

    async def while_open(self, coming: Awaitable[_Result]) -> _Result:
        """Await a result; raise CallerGone when the frontend closes the stream, open from the first piece on."""
        if self._socket is None:
            return await coming
        loop, task, gone = asyncio.get_running_loop(), asyncio.current_task(), False
        assert task is not None, "coroutines are finished as tasks"

        def on_end() -> None:
            # The frontend sends nothing after it has accepted, so this is the end of the stream.
            nonlocal gone
            gone = True
            loop.remove_reader(connection)
            task.cancel()

        connection = self._socket
        loop.add_reader(connection, on_end)
        try:
            result = await coming
        except asyncio.CancelledError:
            if gone:
                raise CallerGone from None
            raise
        finally:
            loop.remove_reader(connection)
        if gone:
            raise CallerGone  # though the awaited code ignored the cancellation
        return result

    def close(self) -> None:
        """End the stream: there are no more pieces."""
        if self._socket is not None:
            self._socket.close()

    def _connect(self) -> socket.socket:
        name, token = token_of(self._address)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A small buffer, so that `run` waits for slow callers.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            connection.settimeout(_ANSWER_S)
            connection.connect(f"\0{name}")
            connection.sendall(token)
            if connection.recv(len(_ACCEPTED)) != _ACCEPTED:
                raise ConnectionResetError("the frontend does not know the stream")  # noqa: TRY301
            connection.settimeout(self._timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


class PieceReader:
    """The end of a stream in a frontend, after the token has been read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def accept(self) -> None:
        """Accept the stream."""
        self._writer.write(_ACCEPTED)

    async def next(self) -> bytes | None:
        """Return the next piece; None after the last one, or if the process has ended."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return await self._reader.readexactly(size)
        return None

    def close(self) -> None:
        """Close the stream; the script's process notices while it awaits, or with its next piece."""
        self._writer.close()
