"""How the pieces of an answer travel from an entry script to a frontend while `run` yields them, beside the row.

The frontend listens on a socket, and says in the request where, with a token. The script's process connects when it
has the first piece, sends the token, and waits for the frontend's word that it takes them: so the frontend knows of
the stream before the row comes back. Each piece has its length before it; behind the last one the connection ends,
and then the row comes back with what became of the call. Nobody reads ahead: a caller who is slow to read fills the
sockets on the way, and `run` waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from collections.abc import Awaitable
from typing import Final, TypeVar

__all__ = [
    "TOKEN_BYTES",
    "CallerGone",
    "PieceReader",
    "PieceWriter",
    "fresh_place",
    "listening_socket",
    "token_of",
]

TOKEN_BYTES: Final = 16
_LENGTH: Final = struct.Struct("=I")
_TAKEN: Final = b"\n"
_BUFFER_BYTES: Final = 1 << 16
_ANSWER_S: Final = 10.0

_Result = TypeVar("_Result")


class CallerGone(Exception):
    """Nobody wants further pieces."""


def listening_socket() -> tuple[socket.socket, str]:
    """Return a socket on which a frontend listens for streams, and its name in the kernel, which no file has."""
    name = f"stoker-pieces-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listening.bind(f"\0{name}")
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        raise
    return listening, name


def fresh_place(name: str) -> tuple[bytes, str]:
    """Return a token that nobody can guess, and what the script's process is told of the stream."""
    token = secrets.token_bytes(TOKEN_BYTES)
    return token, f"{name}/{token.hex()}"


def token_of(place: str) -> tuple[str, bytes]:
    """Return the name of the socket and the token of what `fresh_place` has given."""
    name, _, token = place.rpartition("/")
    return name, bytes.fromhex(token)


class PieceWriter:
    """The end of a stream in the script's process; it is connected with the first piece.

    Args:
        place: What the request says of the stream.
        timeout_s: How long a caller may take to make room for a piece.
    """

    def __init__(self, place: str, timeout_s: float) -> None:
        self._place = place
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def send(self, piece: bytes) -> None:
        """Send a piece.

        Raises:
            TimeoutError: The caller reads nothing.
            OSError: Nobody wants it any more.
        """
        if self._socket is None:
            self._socket = self._connected()
        self._socket.sendall(_LENGTH.pack(len(piece)) + piece)

    async def while_wanted(self, coming: Awaitable[_Result]) -> _Result:
        """Return what something awaitable comes to; it is cancelled at once when the frontend wants no more pieces.

        Before the first piece nothing is known of that.

        Raises:
            CallerGone: The frontend wants no more.
        """
        if self._socket is None:
            return await coming
        loop, task, gone = asyncio.get_running_loop(), asyncio.current_task(), False
        assert task is not None, "coroutines are finished as tasks"

        def on_end() -> None:
            # It sends nothing behind its word that it takes pieces, so this is the end of the stream.
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
            raise CallerGone  # though what was awaited has not heeded that
        return result

    def close(self) -> None:
        """End the stream: there are no more pieces."""
        if self._socket is not None:
            self._socket.close()

    def _connected(self) -> socket.socket:
        name, token = token_of(self._place)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # What lies here the caller has not read: little, for `run` is to wait for slow ones.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            connection.settimeout(_ANSWER_S)
            connection.connect(f"\0{name}")
            connection.sendall(token)
            if connection.recv(len(_TAKEN)) != _TAKEN:
                raise ConnectionResetError("the frontend does not know the stream")  # noqa: TRY301
            connection.settimeout(self._timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


class PieceReader:
    """The end of a stream in a frontend.

    Args:
        reader: What has come behind the token.
        writer: Answers.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def take(self) -> None:
        """Tell the script's process that its pieces are wanted."""
        self._writer.write(_TAKEN)

    async def next(self) -> bytes | None:
        """Return the next piece; None behind the last one, or if the process has ended."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return await self._reader.readexactly(size)
        return None

    def close(self) -> None:
        """Take no more: the script's process hears of it where it awaits, else with its next piece."""
        self._writer.close()
