"""Nodes of a Ray cluster that are cut off or hang: at most one attempt of a run goes on, and its end is reported."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cable import Cable, laid_cable
from tests.live_server import marked_processes, wait_until
from tests.ray.conftest import Cluster, is_living_raylet, started_cluster
from tests.ray.test_runs import submitted, workspace_with

from stoker.settings.workspace import Workspace
from stoker_run.json_files import read_json
from stoker_run.processes import descendants
from stoker_runs.launch.following import wait
from stoker_runs.records.folder import RunFolder, log_file
from stoker_runs.records.states import Status
from stoker_runs.targets.ray.cluster import RayCluster

_WAIT_S = 200

LINES = """
import sys, time
from pathlib import Path
for number in range(10_000):
    print("line", number, flush=True)
    if Path(sys.argv[1]).exists():
        break
    time.sleep(0.2)
"""

EPOCHS = """
import fcntl, json, os, sys, time
from pathlib import Path
other = open(sys.argv[1], "w")
fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
checkpoint = Path("outputs", "epoch.json")
begin = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
for epoch in range(begin, 6):
    print("epoch", epoch, flush=True)
    while epoch == 3 and os.environ["STOKER_ATTEMPT"] == "1":
        time.sleep(0.1)
    written = checkpoint.with_suffix(".new")
    written.write_text(json.dumps(epoch + 1))
    written.replace(checkpoint)
"""
"""Its second attempt fails while the first one runs."""

SAVES = """
import os, sys, time
from pathlib import Path
with open("outputs/weights", "a") as file:
    for count in range(10_000):
        print(os.environ["STOKER_ATTEMPT"], end="", file=file, flush=True)
        if count == 3:
            print("saving", flush=True)
        if os.environ["STOKER_ATTEMPT"] == "2" and Path(sys.argv[1]).exists():
            break
        time.sleep(0.05)
"""
"""It holds its file open."""


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    with laid_cable() as cable:
        yield cable


@pytest.fixture(scope="module")
def cut_cluster(cable: Cable) -> Iterator[Cluster]:
    """A head that others reach by the cable, and that believes a node dead after 24 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_health_check_period_ms", "1000")
        patch.setenv("RAY_health_check_timeout_ms", "5000")
        patch.setenv("RAY_health_check_failure_threshold", "4")
        with started_cluster(host=cable.here) as cluster:
            yield cluster


@pytest.fixture
def workspace(cut_cluster: Cluster, tmp_path: Path) -> Workspace:
    return workspace_with(cut_cluster, tmp_path, 9)


@contextlib.contextmanager
def node(cluster: Cluster, cores: int, cable: Cable | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A node that is killed in the end: one that was cut off does not go by itself."""
    with cluster.node(f"--num-cpus={cores}", cable=cable) as process:
        try:
            yield process
        finally:
            if cable is not None:
                cable.plug()
            for pid in descendants(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def wait_for_output(run: RunFolder, words: str, attempt: int = 1) -> None:
    log = log_file(run, attempt)
    wait_until(
        lambda: log.exists() and words in log.read_text(), f"{run.id} prints {words}", timeout_s=_WAIT_S
    )


def processes_of(run: RunFolder, attempt: int) -> set[int]:
    """The processes of an attempt's script."""
    marks = (f"STOKER_RUN_ID={run.id}", f"STOKER_ATTEMPT={attempt}")
    ours, others = ({pid for pid, _ in marked_processes(mark)} for mark in marks)
    return ours & others


def has_dead_worker(cluster: Cluster, workspace: Workspace, run: RunFolder) -> bool:
    """Whether Ray believes that the worker of the first attempt has ended."""
    assigned = {"attempt": str(run.attempt(1))}
    (worker,) = [
        path.parent.name for path in workspace.root.glob("ray/big/*/*/current") if read_json(path) == assigned
    ]
    status = RayCluster("big", cluster.dashboard, cluster.token).status(worker)
    return status is not None and status.is_over


def assert_completed(run: RunFolder, workspace: Workspace, attempt: int) -> None:
    state = wait(run, workspace)
    assert (state.status, state.attempt) == (Status.COMPLETED, attempt), state


def assert_continued(run: RunFolder, workspace: Workspace) -> None:
    """Whether the second attempt of EPOCHS has gone on from the last checkpoint of the first one, and alone."""
    assert_completed(run, workspace, 2)
    assert log_file(run, 1).read_text() == "".join(f"epoch {number}\n" for number in range(4))
    assert log_file(run, 2).read_text() == "".join(f"epoch {number}\n" for number in range(3, 6))
    assert json.loads((run.outputs / "epoch.json").read_text()) == 6


def test_an_attempt_goes_on_as_long_as_its_node_does(
    workspace: Workspace, tmp_path: Path, cut_cluster: Cluster, cable: Cable
) -> None:
    """It is cut off for 10 s, and until Ray believes it dead: heartbeats in the workspace go on alone.

    A run that ends meanwhile has ended well. One that has not is lost when the cable is back: the raylet ends then.
    """
    go, lock = tmp_path / "go", tmp_path / "lock"
    with node(cut_cluster, 16, cable):
        one = submitted(workspace, LINES, tmp_path / "1", arguments=(str(go),), attempts=2, cores=8)
        two = submitted(workspace, EPOCHS, tmp_path / "2", arguments=(str(lock),), attempts=2, cores=8)
        wait_for_output(one, "line 3")
        wait_for_output(two, "epoch 3")
        with node(cut_cluster, 8):
            cable.pull()
            time.sleep(10)
            cable.plug()
            assert (one.state().status, one.state().attempt) == (Status.RUNNING, 1)
            wait_until(
                lambda: not has_dead_worker(cut_cluster, workspace, one),
                "Ray has both nodes",
                timeout_s=_WAIT_S,
            )
            cable.pull()
            wait_until(
                lambda: has_dead_worker(cut_cluster, workspace, two),
                "Ray gives the node up",
                timeout_s=_WAIT_S,
            )
            go.touch()
            assert_completed(one, workspace, 1)
            assert (two.state().status, two.state().attempt) == (Status.RUNNING, 1)
            assert processes_of(two, 1) != set()
            cable.plug()
            assert_continued(two, workspace)
    printed = log_file(one, 1).read_text().splitlines()
    assert printed == [f"line {number}" for number in range(len(printed))]
    assert read_json(two.attempt(1) / "lost.json") == {"reason": "the daemon of its node has ended"}


def test_a_node_that_is_silent_for_long_is_lost(
    workspace: Workspace, tmp_path: Path, cut_cluster: Cluster, cable: Cable
) -> None:
    """One without cable and workspace ends its script itself. One that hangs writes nothing when it wakes up."""
    go, options = tmp_path / "go", {"attempts": 2, "lost_after_s": 1.0, "grace_s": 1.0}
    with node(cut_cluster, 4, cable) as blind:
        one = submitted(
            workspace, EPOCHS, tmp_path / "1", arguments=(str(tmp_path / "lock"),), cores=4, **options
        )
        wait_for_output(one, "epoch 3")
        with node(cut_cluster, 8) as hung:
            two = submitted(workspace, SAVES, tmp_path / "2", arguments=(str(go),), cores=8, **options)
            wait_for_output(two, "saving")
            with node(cut_cluster, 12):
                stopped = [pid for pid in descendants(hung.pid) if not is_living_raylet(pid)]
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                inside = ["nsenter", "--mount", "--target", str(blind.pid)]
                subprocess.run(
                    [*inside, "mount", "-t", "tmpfs", "-o", "ro", "none", workspace.root], check=True
                )
                cable.pull()
                wait_for_output(two, "saving", attempt=2)
                woken_s = time.monotonic()
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                wait_until(lambda: processes_of(two, 1) == set(), "the first attempt has ended")
                assert time.monotonic() - woken_s < 10, "it has not waited for its lease to run out again"
                go.touch()
                assert_completed(two, workspace, 2)
                assert re.fullmatch("1+2+", (two.outputs / "weights").read_text())
                assert_continued(one, workspace)
                subprocess.run([*inside, "umount", workspace.root], check=True)
                cable.plug()
                report = wait_until(lambda: read_json(one.attempt(1) / "exit.json"), "its end is told")
    assert report["outcome"] == "lease_lost"
    for run in (one, two):
        reasons = [line["reason"] for line in run.event_lines() if line.get("v") == "Queued"]
        assert reasons[-1].startswith("attempt 1 has ended: nothing was heard of the node for 1 s")
