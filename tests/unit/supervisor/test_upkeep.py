"""The periodic work of a supervisor: which tasks begin with which settings, and how they end."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.metrics.memory import MetricMemory
from stoker.settings.server import ServerSettings
from stoker.supervisor import upkeep as module
from stoker.supervisor.upkeep import Upkeep

pytestmark = pytest.mark.anyio

OPEN = dataclasses.replace(ServerSettings(), auth=False, console=False)


class Scene:
    """Upkeep whose tasks are noted instead of repeated.

    Attributes:
        tasks: The repeated actions, by their names.
        log: The calls of other parts.
    """

    def __init__(self, *, traces: bool = False) -> None:
        self.tasks: dict[str, Callable[[], Awaitable[bool]]] = {}
        self.log: list[str] = []
        self.background = SimpleNamespace(
            stopping=False, repeat=lambda task, _, action: self.tasks.update({task: action})
        )
        self.metrics_fd = MetricMemory.create()
        self.shown: list[int] = []
        page = SimpleNamespace(set_keys_generation=self.shown.append)
        supervision: Any = SimpleNamespace(metrics_fd=self.metrics_fd, page=page, background=self.background)
        fleet: Any = SimpleNamespace(
            frontends=SimpleNamespace(end_hung=lambda: self.log.append("end hung")), pids={}
        )
        checked: Any = SimpleNamespace(check=None)
        sender: Any = SimpleNamespace(
            start=lambda: self.log.append("start traces"), close=lambda: self.log.append("close traces")
        )
        live: Any = SimpleNamespace(notify_frontends=lambda: self.log.append("notify"))
        self.upkeep = Upkeep(supervision, fleet, checked, checked, sender if traces else None, live)

    def begin(self, settings: ServerSettings, folder: Path) -> None:
        stock: Any = SimpleNamespace(keys=SimpleNamespace(generation=7))
        self.upkeep.begin(settings, stock, folder)

    async def run(self, task: str) -> bool:
        """Run a task once."""
        return await self.tasks[task]()


@pytest.fixture
def scene() -> Any:
    scene = Scene()
    yield scene
    os.close(scene.metrics_fd)


async def test_only_a_console_has_its_history_recorded(scene: Scene, tmp_path: Path) -> None:
    """Other tasks run in every server."""
    scene.begin(OPEN, tmp_path)
    before = set(scene.tasks)
    scene.begin(dataclasses.replace(OPEN, console=True), tmp_path)
    assert set(scene.tasks) - before == {"recording the history of the console"}


async def test_hung_frontends_are_ended_until_the_server_stops(scene: Scene, tmp_path: Path) -> None:
    """While it stops, frontends may be slow."""
    scene.begin(OPEN, tmp_path)
    assert await scene.run("looking for hung frontends")
    scene.background.stopping = True
    assert not await scene.run("looking for hung frontends")
    assert scene.log == ["end hung"]


async def test_the_generation_of_keys_is_shown(scene: Scene, tmp_path: Path) -> None:
    """The metrics have the one of the operator's folder."""
    scene.begin(OPEN, tmp_path)
    assert await scene.run("showing which keys hold")
    assert scene.shown == [7]


async def test_a_machine_without_a_driver_is_read_once(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task ends when the driver is missing."""

    def fail() -> None:
        raise OSError("no driver")

    scene.begin(OPEN, tmp_path)
    monkeypatch.setattr(scene.upkeep._gpus, "read", fail)
    assert not await scene.run("reading the GPUs")


async def test_traces_are_sent_until_the_end(tmp_path: Path) -> None:
    """Frontends hear when the limit of traces is reached; the last traces are sent at the end."""
    scene = Scene(traces=True)
    scene.begin(OPEN, tmp_path)
    assert await scene.run("looking how many traces are left")
    await scene.upkeep.end()
    assert scene.log == ["start traces", "notify", "close traces"]
    os.close(scene.metrics_fd)


async def test_keys_are_followed_where_callers_need_them(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower ends with the server."""
    calls: list[Any] = []

    class Follower:
        def __init__(self, folder: Path, _: object) -> None:
            calls.append(folder)

        def start(self) -> None:
            calls.append("start")

        def close(self) -> None:
            calls.append("close")

    monkeypatch.setattr(module, "Follower", Follower)
    scene.begin(OPEN, tmp_path)
    assert calls == []
    scene.begin(dataclasses.replace(OPEN, auth=True), tmp_path)
    await scene.upkeep.end()
    assert calls == [tmp_path, "start", "close"]
