"""Runs on disk, as a runner and an agent would leave them."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore

MakeRun = Callable[..., RunFolder]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """The runs of an empty workspace."""
    return RunStore(tmp_path / "workspace" / "runs")


@pytest.fixture
def make_run(store: RunStore) -> MakeRun:
    """Makes a run that has ended, with these records."""

    def make(
        number: int = 1,
        *,
        experiment: str = "digits",
        status: Status = Status.COMPLETED,
        metrics: Iterable[Mapping[str, Any]] = (),
        arguments: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
        snapshot: str = "",
    ) -> RunFolder:
        created_ms = 1_700_000_000_000 + 10 * number
        record = RunRecord(
            f"{experiment}_{created_ms // 1000}_{number:08x}",
            experiment,
            created_ms,
            Definition("train.py", arguments, variables=variables or {}),
            snapshot=snapshot,
        )
        state = RunState(status, since_ms=created_ms + 5, submitted_ms=created_ms, ended_ms=created_ms + 5)
        folder = store.create(record, state)
        attempt = folder.attempt(1)
        attempt.mkdir()
        (attempt / "metrics.jsonl").write_text(
            "".join(f"{json.dumps(line)}\n" for line in metrics), encoding="utf-8"
        )
        return folder

    return make
