"""The turns of connections of gRPC."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from stoker.gateway.grpc.turns import ConnectionTurns


class Connection:
    """A connection that writes its turns into a list, and has `portions` left to read."""

    def __init__(self, calls: list[str], name: str, portions: int = 0) -> None:
        self._calls, self._name, self._portions = calls, name, portions

    def flush(self) -> None:
        self._calls.append(f"flush {self._name}")

    def resume(self) -> bool:
        self._calls.append(f"resume {self._name}")
        self._portions -= 1
        return self._portions > 0


def test_flush_soon_flushes_each_connection_at_the_end_of_the_turn() -> None:
    """In the order of the calls."""

    async def run() -> None:
        turns, calls = ConnectionTurns(), cast(list[str], [])
        for name in "ab":
            turns.flush_soon(cast(Any, Connection(calls, name)))
        assert calls == []
        await asyncio.sleep(0)
        assert calls == ["flush a", "flush b"]
        await asyncio.sleep(0)
        assert len(calls) == 2

    asyncio.run(run())


def test_resume_soon_resumes_one_connection_a_turn() -> None:
    """A connection with more portions goes to the end of the line."""

    async def run() -> None:
        turns, calls = ConnectionTurns(), cast(list[str], [])
        turns.resume_soon(cast(Any, Connection(calls, "a", 2)))
        turns.resume_soon(cast(Any, Connection(calls, "b", 1)))
        for count in (1, 2, 3, 3):
            await asyncio.sleep(0)
            assert len(calls) == count
        assert calls == ["resume a", "resume b", "resume a"]

    asyncio.run(run())
