"""Fixtures for tests of a supervisor among puppets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.supervisor.replicas.stage import Play, PuppetChild, Stage, System, until

from stoker.control.channel import Codec
from stoker.deployment import Deployment
from stoker.metrics.memory import MetricMemory
from stoker.settings.server import ServerSettings
from stoker.supervisor import device_processes, frontend_processes, upkeep
from stoker.supervisor.backoff import Backoff
from stoker.supervisor.reports import StartUp
from stoker.supervisor.stock import FirstModels
from stoker.supervisor.supervisor import Supervisor


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Run a supervisor of these models with two frontends through a scene, then stop it."""
    children: list[PuppetChild] = []
    system = System()

    async def start(
        _: str, module: str, codec: Codec[Any, Any], on_message: Any, on_exit: Any, **__: Any
    ) -> PuppetChild:
        if system.gate is not None:
            await system.gate.wait()
        if system.refusals:
            system.refusals -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        children.append(PuppetChild(module, codec, on_message, on_exit))
        return children[-1]

    class NoGpu:
        def read(self) -> list[Any]:
            raise OSError

    for module in (device_processes, frontend_processes):
        monkeypatch.setattr(module, "Child", SimpleNamespace(start=start))
    monkeypatch.setattr(upkeep, "GpuReader", NoGpu)
    monkeypatch.setattr(device_processes, "yield_cores", lambda _: 0)
    monkeypatch.setattr(Backoff, "_FIRST_S", 0.0)

    metrics_fds: list[int] = []
    create = MetricMemory.create

    def create_metrics() -> int:
        metrics_fds.append(create())
        return metrics_fds[-1]

    monkeypatch.setattr(MetricMemory, "create", create_metrics)

    def run(models: Sequence[Deployment], scene: Callable[[Stage], Awaitable[None]], **settings: Any) -> None:
        ready: list[StartUp] = []
        sockets = [socket.socket(), socket.socket()]

        async def perform() -> None:
            given = ServerSettings(drain_grace_s=0, frontends=len(sockets), **settings)
            # Of the stock only that it takes back what was taken from it.
            stock: Any = SimpleNamespace(release=lambda _: None)
            supervisor = Supervisor(
                given, FirstModels(models), tmp_path, sockets, ready.append, stock, time.monotonic()
            )
            running = asyncio.ensure_future(supervisor.run())
            processes = supervisor.fleet.devices.processes
            await until(lambda: processes and len(children) >= 2 + len(processes))
            await scene(Stage(supervisor, children, ready, system, MetricMemory(metrics_fds[-1])))
            supervisor.background.stop()
            await running

        asyncio.run(perform())

    return run
