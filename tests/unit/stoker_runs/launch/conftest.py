"""A workspace, a clock that does not wait, and runs that a puppet runs."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.puppet_engine import Machine, PuppetEngine

from stoker_runs.launch.runner_process import Runner
from stoker_runs.launch.slots import Slots
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunState
from stoker_runs.records.store import RunStore


class StillClock:
    """Goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def elapsed_s(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def at_once(work: Callable[[], None]) -> "Future[None]":
    """Does what takes long now."""
    future: Future[None] = Future()
    try:
        work()
    except Exception as error:  # noqa: BLE001  # raised where the future is asked
        future.set_exception(error)
    else:
        future.set_result(None)
    return future


class World:
    """A workspace with a puppet's machine."""

    def __init__(self, root: Path) -> None:
        self.store = RunStore(root / "runs")
        self.machine = Machine()
        self.clock = StillClock()
        self.root = root
        self._count = 0

    def submit(self, definition: Definition | None = None) -> RunFolder:
        self._count += 1
        definition = definition or Definition("train.py")
        now_ms = self.clock.now_ms()
        record = RunRecord(f"e_{now_ms // 1000}_{self._count:08x}", "e", now_ms, definition)
        state = RunState(since_ms=now_ms, submitted_ms=now_ms, attempts=definition.attempts)
        return self.store.create(record, state)

    def runner(self, folder: RunFolder, slots: Slots | None = None) -> Runner:
        engine = PuppetEngine(self.machine)
        snapshots = self.root / "snapshots"
        return Runner(folder, self.store, engine, slots, snapshots, at_once, clock=self.clock)  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
