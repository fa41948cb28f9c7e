"""Answers that come piece by piece: the streams that scripts open, and what is read from them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Final

from stoker.errors import ScoringTimeout
from stoker.gateway.http.responses import Answer, error_body
from stoker.wire.script_streams import TOKEN_BYTES, PieceReader, listening_socket, new_address

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call

logger = logging.getLogger(__name__)

_PEER: Final = struct.Struct("=iII")
_GREETING_S: Final = 10.0


class ExpectedStream:
    """A stream that a script may open.

    Attributes:
        place: The address and token that the script's process gets.
    """

    def __init__(self, streams: ScriptStreams, token: bytes, place: str) -> None:
        self._streams, self._token = streams, token
        self.place = place
        self.begun: asyncio.Future[PieceReader] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Stop expecting it, and stop reading it."""
        self._streams.forget(self._token)
        if not self.begun.cancel() and not self.begun.cancelled():
            self.begun.result().close()


class ScriptStreams:
    """Accepts the streams of all scripts of a server; created when the first request needs one."""

    def __init__(self) -> None:
        self._expected: dict[bytes, ExpectedStream] = {}
        self._greeting: set[asyncio.Task[None]] = set()
        self._socket, self._name = listening_socket()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._on_connections)

    def expect(self) -> ExpectedStream:
        """Expect a stream; its `close` has to be called."""
        token, place = new_address(self._name)
        expected = self._expected[token] = ExpectedStream(self, token, place)
        return expected

    def forget(self, token: bytes) -> None:
        """Stop expecting a stream."""
        self._expected.pop(token, None)

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _on_connections(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError as error:
            # Called again while a connection waits: a descriptor may be free then.
            logger.debug("a stream of a script is not taken now: %s", error)
            return
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.geteuid():
            # Abstract sockets have no file mode that would keep other users out.
            connection.close()
            return
        task = self._loop.create_task(self._greet(connection))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, connection: socket.socket) -> None:
        """Read from a new connection which stream it is."""
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
        pieces.accept()
        expected.begun.set_result(pieces)


_REST_S: Final = 5.0
"""Pieces that the device sent before its answer have arrived by then."""


class PiecewiseAnswer:
    """An answer in progress. Its caller reads piece by piece; nothing is read ahead.

    Args:
        answered: A future of the row's answer: an error, or nothing.
    """

    def __init__(self, call: Call, answered: asyncio.Future[Answer], expected: ExpectedStream) -> None:
        self._call, self._answered, self._expected = call, answered, expected
        self._begun = False

    async def begin(self) -> bool:
        """Wait for the first piece; False if there is none."""
        begun = self._expected.begun
        await asyncio.wait((self._answered, begun), return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            call = self._call
            call.service.metrics.observe_first_response(time.monotonic_ns() - call.received_ns)
        return begun.done()

    async def next(self) -> bytes | None:
        """Return the next piece, JSON without line breaks; None after the last one, or if the script fails.

        The previous piece has been sent by now; the next one has the same time limit as the first.
        """
        if self._begun:
            self._call.extend(time.monotonic_ns() + self._call.service.limits.timeout_ns)
        self._begun = True
        coming = asyncio.ensure_future(self._expected.begun.result().next())
        try:
            await asyncio.wait((coming, self._answered), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                await asyncio.wait((coming,), timeout=_REST_S)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()

    async def end(self) -> Answer:
        """Return the result: 200 if the script has yielded everything, otherwise an error with its JSON."""
        if not self._answered.done():
            await asyncio.wait((self._answered,), timeout=_REST_S)
        if self._answered.done():
            return self._answered.result()
        # The script's process has ended, which is not known here yet, or it hangs after its last piece.
        error = ScoringTimeout(self._call.service.limits.timeout_ns // 1_000_000)
        return Answer(error.status, b"", error_body(error))
