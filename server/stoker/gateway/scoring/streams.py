"""The streams of answers that come piece by piece, in one frontend: each is expected, then connected."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from typing import Final

from stoker.wire.pieces import TOKEN_BYTES, PieceReader, fresh_place, listening_socket

__all__ = ["ExpectedStream", "ScriptStreams"]

logger = logging.getLogger(__name__)

_PEER: Final = struct.Struct("=iII")
_GREETING_S: Final = 10.0


class ExpectedStream:
    """A stream that a script may begin.

    Attributes:
        place: What the script's process is told of it.
        begun: Its pieces, once the first one is there.
    """

    def __init__(self, streams: ScriptStreams, token: bytes, place: str) -> None:
        self._streams, self._token = streams, token
        self.place = place
        self.begun: asyncio.Future[PieceReader] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Expect it no more, and take no more of it."""
        self._streams.forget(self._token)
        if not self.begun.cancel() and not self.begun.cancelled():
            self.begun.result().close()


class ScriptStreams:
    """Listens for the streams of all scripts of a server; made when the first request wants one."""

    def __init__(self) -> None:
        self._expected: dict[bytes, ExpectedStream] = {}
        self._greeting: set[asyncio.Task[None]] = set()
        self._socket, self._name = listening_socket()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._on_connections)

    def expect(self) -> ExpectedStream:
        """Wait for a stream; `close` of it has to be called."""
        token, place = fresh_place(self._name)
        expected = self._expected[token] = ExpectedStream(self, token, place)
        return expected

    def forget(self, token: bytes) -> None:
        """Wait for a stream no more."""
        self._expected.pop(token, None)

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _on_connections(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError as error:
            # It is called again while one waits: there may be a descriptor then.
            logger.debug("a stream of a script is not taken now: %s", error)
            return
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.geteuid():
            # Sockets without a file have no mode that would keep other users out.
            connection.close()
            return
        task = self._loop.create_task(self._greet(connection))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, connection: socket.socket) -> None:
        """Find out which stream a connection is."""
        connection.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            async with asyncio.timeout(_GREETING_S):
                token = await reader.readexactly(TOKEN_BYTES)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        expected = self._expected.pop(token, None)
        if expected is None or expected.begun.done():
            writer.close()
            return
        pieces = PieceReader(reader, writer)
        pieces.take()
        expected.begun.set_result(pieces)
