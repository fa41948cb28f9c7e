"""Tests of compute targets: no part of `make test`, for they start and kill processes."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import PROGRAM_S
from tests.targets.machines import MACHINES

from stoker.settings.workspace import Workspace
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.snapshots import SnapshotStore
from stoker_runs.records.states import RunState
from stoker_runs.records.store import RunStore
from stoker_runs.targets.engine import AttemptState, Engine, Job, Presence


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only `pytest -m targets` runs what is here."""
    return None if "targets" in str(config.option.markexpr) else True


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    return Workspace(tmp_path / "workspace").create()


class Bench:
    """An engine with a workspace: makes jobs of scripts and drives them as a runner would."""

    def __init__(self, workspace: Workspace, make_engine: Callable[[Workspace], Engine]) -> None:
        self.workspace = workspace
        self.store = RunStore(workspace.runs_dir)
        self._make_engine = make_engine
        self._count = 0

    @property
    def engine(self) -> Engine:
        """A new one each time: nothing that matters is in its memory."""
        return self._make_engine(self.workspace)

    def job(self, script: str, tmp_path: Path, **options: object) -> Job:
        self._count += 1
        source = tmp_path / f"source{self._count}"
        source.mkdir()
        (source / "train.py").write_text(script, encoding="utf-8")
        digest = SnapshotStore(self.workspace.snapshots_dir).take(source).digest
        definition = Definition("train.py", **options)  # type: ignore[arg-type]
        # Another run of the tests on this machine looks for processes by their run's id, too.
        run_id = f"e_1_{secrets.token_hex(4)}"
        record = RunRecord(run_id, "e", self._count, definition, snapshot=digest)
        folder = self.store.create(record, RunState())
        return Job(folder, record, 1, self.workspace.snapshots_dir)

    def start(self, job: Job) -> None:
        """Prepare and start an attempt."""
        notes: list[str] = []
        self.engine.prepare(job, notes.append)
        self.engine.start(job)

    def wait_until(self, job: Job, reached: Callable[[AttemptState], bool]) -> AttemptState:
        end_s = time.monotonic() + PROGRAM_S
        while time.monotonic() < end_s:
            sight = self.engine.observe(job)
            self.engine.pull(job, final=False)
            if reached(sight):
                return sight
            time.sleep(0.05)
        raise AssertionError(f"not reached: {self.engine.observe(job)}")

    def finish(self, job: Job) -> AttemptState:
        """Wait for the end of an attempt, fetch its outputs, and clean up."""
        sight = self.wait_until(job, lambda one: one.presence is Presence.ENDED)
        self.engine.pull(job, final=True)
        self.engine.clean(job)
        return sight

    def wait_for_output(self, job: Job, words: str) -> None:
        """Wait until the script has printed this."""
        self.wait_until(job, lambda _: words in self.log(job.folder))

    @staticmethod
    def log(folder: RunFolder, attempt: int = 1) -> str:
        path = folder.attempt(attempt) / "log_0.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


@pytest.fixture(params=MACHINES, ids=str)
def bench(request: pytest.FixtureRequest, workspace: Workspace) -> Bench:
    """One for each kind of machine that an engine is for."""
    if request.param.missing:
        pytest.skip(request.param.missing)
    return Bench(workspace, request.param.engine)
