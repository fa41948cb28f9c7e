"""Clusters whose nodes see the workspace: the lease of a silent node, and its late writes."""

import json
import os
from pathlib import Path

import pytest

from stoker.settings.workspace import Workspace
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunState
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import Job, Presence
from stoker_runs.targets.ray.engine import RayEngine
from stoker_runs.targets.shared_workspace import SharedWorkspaceEngine


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").create()


@pytest.fixture
def job(workspace: Workspace) -> Job:
    """An attempt whose agent has said once that it lives, and whose script has an output."""
    record = RunRecord("e_1_0a1b2c3d", "e", 1, Definition("train.py", attempts=2))
    found = Job(RunStore(workspace.runs_dir).create(record, RunState()), record, 1, workspace.snapshots_dir)
    outputs = found.place / "work" / "outputs"
    outputs.mkdir(parents=True)
    (outputs / "weights").write_text("whole")
    for name, content in (("start", {}), ("agent", {"host": "node"}), ("heartbeat", {"up_s": 7.5})):
        (found.place / f"{name}.json").write_text(json.dumps(content))
    return found


@pytest.fixture
def engine(workspace: Workspace) -> SharedWorkspaceEngine:
    return RayEngine(Target("ray", "ray", {"address": "head:8265", "max_nodes": 1}), workspace)


def test_the_lease_of_a_silent_agent_has_the_time_of_its_last_sign(
    job: Job, engine: SharedWorkspaceEngine
) -> None:
    """An agent that wakes up long after must not take the newest lease for a new one."""
    now_s = [0.0]
    engine.elapsed_s = lambda: now_s[0]
    for later_s, presence in ((0, Presence.ALIVE), (20, Presence.UNREACHABLE), (2, Presence.UNREACHABLE)):
        now_s[0] += later_s
        # There is no agent that would hold its lock.
        assert engine.observe(job).presence is presence
        assert json.loads((job.place / "lease.json").read_bytes()) == {"heard_s": 7.5}
    (job.place / "heartbeat.json").write_text('{"up_s": 12.5}')
    now_s[0] += 2
    assert engine.observe(job).presence is Presence.ALIVE
    assert json.loads((job.place / "lease.json").read_bytes()) == {"heard_s": 12.5}


def test_late_writer_changes_no_collected_output(job: Job, engine: SharedWorkspaceEngine) -> None:
    """Outputs of an attempt without a reported end are copied, with their links and folders."""
    outputs = job.place / "work" / "outputs"
    (outputs / "link").symlink_to("weights")
    (outputs / "deep").mkdir()
    os.mkfifo(outputs / "pipe")
    with (outputs / "weights").open("a") as file:
        engine.pull(job, final=True)
        engine.clean(job)
        file.write("torn")
    kept = job.folder.outputs
    assert (kept / "weights").read_text() == "whole"
    assert (kept / "link").readlink() == Path("weights")
    assert sorted(path.name for path in kept.iterdir()) == ["deep", "link", "weights"]
    assert not (job.place / "work").exists()


def test_nothing_is_copied_where_nothing_runs(job: Job, engine: SharedWorkspaceEngine) -> None:
    """Outputs are large: they are moved when the worker has told that none of its processes is left."""
    number = (job.place / "work" / "outputs" / "weights").stat().st_ino
    (job.place / "lost.json").write_text('{"reason": "gone"}')
    engine.pull(job, final=True)
    assert (job.folder.outputs / "weights").stat().st_ino == number
