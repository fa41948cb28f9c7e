"""The open connections of gRPC."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from stoker.gateway.grpc.open_connections import OpenConnections


class Connection:
    """A connection without a socket, with a number of calls under way."""

    def __init__(self, calls: int) -> None:
        self.calls_under_way = self.calls = calls
        self.events: list[str] = []
        self.http = SimpleNamespace(
            drain=lambda: self.events.append("drain"), settle=lambda: self.events.append("settle")
        )

    def flush(self) -> None:
        self.events.append("flush")

    def abort(self) -> None:
        self.events.append("abort")


def test_finish_aborts_connections_at_the_deadline() -> None:
    """A peer gets a GOAWAY first, and then the last stream's number."""

    async def run() -> None:
        counts: list[int] = []
        connections = OpenConnections(0.0, counts.append)
        busy = Connection(3)
        connections.add(cast(Any, busy))
        deadline_s = asyncio.get_running_loop().time()
        assert await connections.finish(deadline_s) == 3
        assert busy.events == ["drain", "flush", "settle", "flush", "abort"]
        assert counts == [1]

    asyncio.run(run())


def test_finish_ends_with_the_last_connection() -> None:
    """It does not wait for its deadline."""

    async def run() -> None:
        counts: list[int] = []
        connections = OpenConnections(0.0, counts.append)
        connection = cast(Any, Connection(0))
        connections.add(connection)
        loop = asyncio.get_running_loop()
        loop.call_soon(connections.discard, connection)
        assert await connections.finish(loop.time() + 1000) == 0
        assert (len(connections), list(connections), counts) == (0, [], [1, 0])
        assert "abort" not in connection.events

    asyncio.run(run())
