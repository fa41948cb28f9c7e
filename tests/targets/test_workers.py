"""Workers on the nodes of a cluster: they run attempts one after the other, and die with the node's daemon."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.live_server import marked_processes, wait_until
from tests.patience import PROGRAM_S
from tests.targets.conftest import Bench
from tests.targets.ray_dashboard import RayDashboard

from stoker.settings.workspace import Workspace
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import EngineFailure, Presence
from stoker_runs.targets.ray.engine import RayEngine
from stoker_runs.targets.registry import engine_of
from stoker_runs.targets.shared_workspace import assign_attempt

pytestmark = pytest.mark.targets

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(300)\n"


def make_bench(workspace: Workspace, dashboard: RayDashboard, **settings: object) -> Bench:
    content = {"address": dashboard.address, "max_nodes": 2, "python": sys.executable, **settings}
    return Bench(workspace, lambda place: engine_of(Target("ray", "ray", content), place))


def until_idle(pool: Path) -> None:
    """Wait until no worker of a queue has an attempt."""
    wait_until(lambda: list(pool.rglob("current")) == [], "the worker has nothing to do")


def test_one_worker_runs_attempts_one_after_the_other(workspace: Workspace, tmp_path: Path) -> None:
    """The second attempt needs no other job of Ray."""
    with RayDashboard() as dashboard:
        bench = make_bench(workspace, dashboard, idle_s=60)
        for _ in range(2):
            job = bench.job("print('hello')\n", tmp_path)
            bench.start(job)
            assert bench.finish(job).exit["exit_status"] == 0
            until_idle(workspace.root / "ray" / "ray" / "1c0g")
        assert len(dashboard.jobs) == 1


def test_unused_worker_ends(workspace: Workspace, tmp_path: Path) -> None:
    """Nothing holds the node after its idle time, and nothing is left in the workspace."""
    with RayDashboard() as dashboard:
        bench = make_bench(workspace, dashboard, idle_s=0)
        job = bench.job("print('hello')\n", tmp_path)
        bench.start(job)
        bench.finish(job)
        wait_until(
            lambda: {one.status for one in dashboard.jobs.values()} == {"SUCCEEDED"}, "the worker ends"
        )
        assert list((workspace.root / "ray" / "ray" / "1c0g").iterdir()) == []


def test_an_attempt_waits_for_cores_and_can_be_taken_back(workspace: Workspace, tmp_path: Path) -> None:
    """It names the reason of its wait; after a stop it never begins, and Ray forgets its job."""
    with RayDashboard(cores=1) as dashboard:
        bench = make_bench(workspace, dashboard)
        first, second = (bench.job(WAITS, tmp_path) for _ in range(2))
        bench.start(first)
        bench.wait_for_output(first, "ready")
        bench.start(second)
        sight = bench.wait_until(second, lambda one: one.presence is Presence.PENDING and bool(one.reason))
        assert sight.reason == "waits for a node with 1 core of its own: 1 running, 0 idle, 0 starting"
        bench.engine.stop(second, 1.0, "canceled")
        assert bench.engine.observe(second).presence is Presence.GONE
        assert [job.status for job in dashboard.jobs.values()] == ["RUNNING", "STOPPED"]
        bench.engine.clean(first)


def test_an_attempt_takes_any_worker_that_gets_free(workspace: Workspace, tmp_path: Path) -> None:
    """Not only the one that was started for it, whose job Ray forgets when nothing is left to do."""
    with RayDashboard(cores=1) as dashboard:
        bench = make_bench(workspace, dashboard, idle_s=60)
        first, second = (bench.job("print('hello')\n", tmp_path) for _ in range(2))
        bench.start(first)
        bench.start(second)
        assert len(dashboard.jobs) == 2
        assert bench.finish(first).exit["exit_status"] == 0
        assert bench.finish(second).exit["exit_status"] == 0
        assert [job.status for job in dashboard.jobs.values()] == ["RUNNING", "STOPPED"]


def test_an_attempt_that_is_queued_twice_runs_once(workspace: Workspace, tmp_path: Path) -> None:
    """As after an old answer of a file server: the second worker leaves it to the first."""
    with RayDashboard(cores=1) as dashboard:
        bench = make_bench(workspace, dashboard, idle_s=60)
        job = bench.job(WAITS, tmp_path)
        bench.start(job)
        bench.wait_for_output(job, "ready")
        pool = workspace.root / "ray" / "ray" / "1c0g"
        again = pool / "again.next"
        assign_attempt(job, again)
        other = pool / "other"
        other.mkdir()
        words = [sys.executable, "-m", "stoker_run", "work", other, "--queue", pool, "--idle", "0"]
        subprocess.run(words, check=True, timeout=PROGRAM_S)
        assert not again.exists()
        assert bench.engine.observe(job).presence is Presence.ALIVE
        assert not (job.place / "lost.json").exists()
        bench.engine.stop(job, 1.0, "canceled")
        bench.finish(job)


def test_a_worker_that_has_died_without_an_attempt_is_replaced(workspace: Workspace, tmp_path: Path) -> None:
    """Its folder is there still, as after a kill of its node."""
    with RayDashboard() as dashboard:
        bench = make_bench(workspace, dashboard, idle_s=60)
        job = bench.job("print('hello')\n", tmp_path)
        bench.start(job)
        bench.finish(job)
        pool = workspace.root / "ray" / "ray" / "1c0g"
        until_idle(pool)
        dashboard.end(next(iter(dashboard.jobs)))
        assert len(list(pool.iterdir())) == 1
        job = bench.job("print('hello')\n", tmp_path)
        bench.start(job)
        assert len(dashboard.jobs) == 1
        bench.wait_until(job, lambda one: one.presence is Presence.ABSENT)
        bench.engine.start(job)
        assert bench.finish(job).exit["exit_status"] == 0
        assert len(list(pool.iterdir())) == 1


def test_attempt_gets_another_worker_if_its_first_dies_before_the_start(
    workspace: Workspace, tmp_path: Path
) -> None:
    """It has not begun, so that it may begin elsewhere."""
    with RayDashboard(cores=0) as dashboard:
        bench = make_bench(workspace, dashboard)
        job = bench.job("print('hello')\n", tmp_path)
        bench.start(job)
        bench.wait_until(job, lambda one: one.presence is Presence.PENDING)
        dashboard.end(next(iter(dashboard.jobs)))
        dashboard.cores = 4
        bench.wait_until(job, lambda one: one.presence is Presence.ABSENT)
        bench.engine.start(job)
        assert bench.finish(job).exit["exit_status"] == 0
        assert next(one.status for one in dashboard.jobs.values()) == "STOPPED"


def test_a_job_is_submitted_again_while_its_cluster_starts(workspace: Workspace, tmp_path: Path) -> None:
    """A job that it does not take yet is submitted until it is taken."""
    with RayDashboard(faults=2) as dashboard:
        bench = make_bench(workspace, dashboard)
        job = bench.job("print('hello')\n", tmp_path)
        bench.start(job)
        for _ in range(2):
            bench.wait_until(job, lambda one: one.presence is Presence.ABSENT)
            bench.engine.start(job)
        assert bench.finish(job).exit["exit_status"] == 0
        assert len(dashboard.jobs) == 1


def test_a_node_without_workspace_or_python_is_reported_with_its_reason(
    workspace: Workspace, tmp_path: Path
) -> None:
    """The check and the start of an attempt have the node's reason."""
    with RayDashboard() as dashboard:
        bench = make_bench(workspace, dashboard, python="no-python")
        with pytest.raises(
            EngineFailure, match=r"could not start a worker for .*no-python: not found; put the"
        ):
            bench.engine.check()
        job = bench.job("print('hello')\n", tmp_path)
        bench.start(job)
        bench.wait_until(job, lambda one: one.presence is Presence.ABSENT)
        with pytest.raises(EngineFailure, match="no-python: not found"):
            bench.engine.start(job)


def test_a_token_is_shown(workspace: Workspace) -> None:
    """The error without the right one has the remedy."""
    workspace.targets_dir.mkdir()
    with RayDashboard(token="secret") as dashboard:
        bench = make_bench(workspace, dashboard)
        with pytest.raises(
            EngineFailure, match=r"wants another token; stoker targets attach ray ray .*--ask-token"
        ):
            bench.engine.check()
        secret = workspace.targets_dir / "ray.secret"
        secret.write_text(json.dumps({"token": "secret"}))
        secret.chmod(0o600)
        assert bench.engine.check()[1].startswith("Ray 2.60.0 at")


_DAEMON = """
import ctypes, subprocess, sys, time
ctypes.CDLL(None).prctl(15, b"raylet", 0, 0, 0)
subprocess.Popen(["/bin/sh", "-c", sys.argv[1] + "; true"])
time.sleep(300)
"""


def test_a_script_dies_with_the_daemon_of_its_node(workspace: Workspace, tmp_path: Path) -> None:
    """No process of the attempt is left, its folder has the reason, and the run's log has the output."""
    with RayDashboard(cores=0) as dashboard:
        bench = make_bench(workspace, dashboard)
        job = bench.job(WAITS, tmp_path)
        bench.start(job)
        # Ray starts it below its daemon, and below a shell.
        command = next(iter(dashboard.jobs.values())).submission["entrypoint"].removeprefix("exec ")
        daemon = subprocess.Popen([sys.executable, "-c", _DAEMON, command])
        try:
            bench.wait_for_output(job, "ready")
            assert len(list(marked_processes(f"STOKER_RUN_ID={job.record.id}"))) >= 1
        finally:
            daemon.send_signal(signal.SIGKILL)
            daemon.wait(PROGRAM_S)
        sight = bench.wait_until(job, lambda one: one.presence is Presence.GONE)
        assert sight.reason == "the daemon of its node has ended"
        assert list(marked_processes(f"STOKER_RUN_ID={job.record.id}")) == []
        assert bench.log(job.folder) == "ready\n"


def test_a_silent_node_is_lost_after_its_time(workspace: Workspace, tmp_path: Path) -> None:
    """With one attempt the time is the run's own; with more the lease has to run out there too."""
    with RayDashboard() as dashboard:
        bench = make_bench(workspace, dashboard)
        job = bench.job(WAITS, tmp_path, lost_after_s=30.0)
        bench.start(job)
        bench.wait_for_output(job, "ready")
        now_s = [0.0]
        engine = bench.engine
        assert isinstance(engine, RayEngine)
        engine.elapsed_s = lambda: now_s[0]
        assert engine.observe(job).presence is Presence.ALIVE
        agent = json.loads((job.place / "agent.json").read_bytes())["pid"]
        os.kill(agent, signal.SIGSTOP)
        try:
            engine.observe(job)
            now_s[0] += 20
            sight = engine.observe(job)
            assert (sight.presence, sight.reason.partition(" for ")[2]) == (Presence.UNREACHABLE, "20 s")
            dashboard.end(next(iter(dashboard.jobs)))
            now_s[0] += 20
            again = job.record.definition.replace(attempts=2)
            with_more = replace(job, record=job.record.replace(definition=again))
            assert engine.observe(with_more).presence is Presence.UNREACHABLE
            sight = engine.observe(job)
            assert sight.presence is Presence.GONE
            assert sight.reason.endswith("for 40 s; Ray: Job is STOPPED")
        finally:
            bench.engine.clean(job)
