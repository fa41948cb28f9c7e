"""The ports of a frontend, opened and closed together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.gateway.ports import Ports


class Part:
    """A listener, or another part that starts and stops; it writes its calls into a list."""

    def __init__(self, calls: list[str], name: str, cut_off: int = 0) -> None:
        self._calls, self._name, self._cut_off = calls, name, cut_off

    async def start(self) -> None:
        self._calls.append(f"start {self._name}")

    def leave_port(self) -> None:
        self._calls.append(f"leave {self._name}")

    async def stop_listening(self) -> None:
        self._calls.append(f"stop listening {self._name}")

    async def finish(self, timeout_s: float) -> int:
        self._calls.append(f"finish {self._name} {timeout_s}")
        return self._cut_off

    async def stop(self, timeout_s: float) -> int:
        self._calls.append(f"stop {self._name} {timeout_s}")
        return self._cut_off


def ports(calls: list[str], *, with_all: bool) -> Ports:
    """Make ports; with all parts, gRPC, another frontend and requests that are answered later."""
    runner = SimpleNamespace(start=lambda: calls.append("start later"), stop=Part(calls, "later").stop)
    gateway = SimpleNamespace(later=SimpleNamespace(runner=runner) if with_all else None)
    peers = SimpleNamespace(start=lambda: calls.append("start peers")) if with_all else None
    rules = SimpleNamespace() if with_all else None
    return Ports(
        cast(Any, gateway), cast(Any, None), cast(Any, Part(calls, "http", 2)), cast(Any, rules), cast(Any, peers)
    )  # fmt: skip


def test_open_starts_only_the_parts_that_are_on() -> None:
    """A plain frontend has HTTP alone."""
    calls: list[str] = []
    made = ports(calls, with_all=False)
    assert asyncio.run(made.open())
    assert asyncio.run(made.close(3)) == 2
    assert calls == ["start http", "stop listening http", "finish http 3"]


def test_close_adds_the_calls_that_grpc_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts get the same time at once."""
    calls: list[str] = []
    made = ports(calls, with_all=True)
    monkeypatch.setattr(made, "_create_grpc_server", lambda _: Part(calls, "grpc", 5))

    async def open_and_close() -> int:
        assert await made.open()
        return await made.close(3)

    assert asyncio.run(open_and_close()) == 7
    assert calls[:4] == ["start http", "start grpc", "start peers", "start later"]
    assert sorted(calls[4:]) == ["finish http 3", "stop grpc 3", "stop later 3", "stop listening http"]


def test_open_after_leave_opens_nothing() -> None:
    """Another server has the port."""
    calls: list[str] = []
    made = ports(calls, with_all=True)
    made.leave()
    assert not asyncio.run(made.open())
    assert calls == ["leave http"]
