"""Connections of a frontend: uvicorn's protocol on listening sockets, with a drain that loses no request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from email.utils import formatdate
from typing import Final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from stoker.gateway.direct import DirectProtocol
from stoker.gateway.gateway import Gateway

__all__ = ["Listener"]

_KEEP_ALIVE_S: Final = 75
_ARRIVAL_TIMEOUT_S: Final = 10
_SERVER: Final = (b"server", b"stoker")


class Listener:
    """Accepts connections and ends them.

    uvicorn's own `Server` is not used: its shutdown closes connections on which a request may be under way.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, sockets: Sequence[socket.socket]) -> None:
        self._gateway = gateway
        self._sockets = sockets
        self._config = Config(
            app,
            http=DirectProtocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.Task[None] | None = None

    @property
    def connections(self) -> set[DirectProtocol]:
        """The open connections."""
        return self._state.connections  # type: ignore[return-value]  # all are made by _protocol

    def _protocol(self) -> DirectProtocol:
        return DirectProtocol(self._config, self._state, {}, gateway=self._gateway)

    async def start(self) -> None:
        """Begin to accept."""
        self._tick()
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            # A copy, because the server closes its socket before the last connections have been taken from
            # it.
            self._servers.append(await loop.create_server(self._protocol, sock=sock.dup(), backlog=2048))
        self._ticker = loop.create_task(self._tick_each_second())

    async def _tick_each_second(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._tick()
            for connection in list(self.connections):
                _reap(connection)

    def _tick(self) -> None:
        headers = [(b"date", formatdate(usegmt=True).encode()), _SERVER]
        self._state.default_headers = headers
        self._gateway.default_lines = b"".join(b"%b: %b\r\n" % header for header in headers)

    async def stop_listening(self) -> None:
        """Stop accepting, but take every connection that the kernel has accepted already."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.setblocking(False)
            while True:
                try:
                    connection, _ = sock.accept()
                except OSError:
                    break
                await loop.connect_accepted_socket(self._protocol, connection)
            sock.close()

    async def finish(self, timeout_s: float) -> int:
        """Close idle connections, wait for the busy ones, and return how many had to be cut off."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        for connection in list(self.connections):
            # A request may be in the socket's buffer, unread: the loop reads it before this callback's next
            # turn.
            if not (connection.busy or connection.receiving):
                connection.transport.close()
        # uvicorn's set of connections has no event to wait for.
        while self.connections and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self._ticker is not None:
            self._ticker.cancel()
        return len(self.connections)


def _reap(connection: DirectProtocol) -> None:
    if connection.busy:
        connection.idle_sweeps = 0
        return
    connection.idle_sweeps += 1
    limit = _ARRIVAL_TIMEOUT_S if connection.receiving else _KEEP_ALIVE_S
    if connection.idle_sweeps > limit:
        connection.time_out()
