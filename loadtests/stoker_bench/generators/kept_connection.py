"""A connection that a load generator holds: made anew whenever the server ends or refuses it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KeptConnection", "keep_connected"]

RECONNECT_DELAY_S: Final = 0.02


class KeptConnection(asyncio.Protocol):
    """One connection of `keep_connected`.

    Attributes:
        lost: Done once the connection has ended.
    """

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        del exc
        if not self.lost.done():
            self.lost.set_result(None)


async def keep_connected(
    host: str,
    port: int,
    make: Callable[[], KeptConnection],
    refused: Callable[[float], None] = lambda _: None,
) -> None:
    """Hold one connection until cancelled, with a new one whenever the server ends it.

    Args:
        host: Where the server listens.
        port: Where it listens.
        make: Makes the protocol of each connection.
        refused: Hears of each connection that could not be made: when it was tried, by `time.monotonic`.
    """
    loop = asyncio.get_running_loop()
    while True:
        tried_s = time.monotonic()
        try:
            _, connection = await loop.create_connection(make, host, port)
        except OSError:
            refused(tried_s)
            await asyncio.sleep(RECONNECT_DELAY_S)
            continue
        try:
            await connection.lost
        finally:
            connection.abort()
