"""The agent of runs with real processes: no process of a script outlives it, and its exit record is right."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PROGRAM_S

import stoker_base
import stoker_run
from stoker_run import archive, observing
from stoker_run.attempt import KEY
from stoker_run.json_files import read_json_lines, replace_json

GRANDCHILDREN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
quiet = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
for _ in range(2):
    child = subprocess.Popen([sys.executable, "-Sc", quiet], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""

Attempt = Callable[..., Path]


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "stoker_run.zip"
    archive.write_archive(path)
    return path


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    """Makes the folder of an attempt with a script; its remaining processes are killed at the end."""
    folders: list[Path] = []

    def make(script: str, **given: Any) -> Path:
        folder = tmp_path / f"attempt{len(folders)}"
        (folder / "work").mkdir(parents=True)
        (folder / "work" / "train.py").write_text(script)
        start = {
            "version": 1,
            "run_id": "e_1_a",
            "experiment": "e",
            "attempt": 1,
            "command": [sys.executable, "-S", "train.py"],
            "directory": "work",
            **given,
        }
        replace_json(folder / "start.json", start, 0o600)
        folders.append(folder)
        return folder

    yield make
    for folder in folders:
        observing.sweep(folder)


def detached(zipped: Path, folder: Path) -> int:
    """Start the agent as an engine does; returns its number."""
    subprocess.run([sys.executable, "-S", zipped, "start", folder, "--detach"], check=True, timeout=PROGRAM_S)
    found = observing.observe(folder)["agent"]
    return int(found["pid"])


def until(condition: Callable[[], Any], failure: str) -> Any:
    """Wait until a condition is true; return its value."""
    give_up = time.monotonic() + PROGRAM_S
    while not (found := condition()):
        assert time.monotonic() < give_up, failure
        time.sleep(0.02)
    return found


def wait_for_exit(folder: Path) -> dict[str, Any]:
    """How it ended, once nothing of it is left."""
    until(lambda: not observing.observe(folder)["alive"], "the attempt is alive")
    found = json.loads((folder / "exit.json").read_text())
    assert isinstance(found, dict)
    return found


def in_process(folder: Path) -> dict[str, Any]:
    """Run an attempt that ends by itself in a process of its own."""
    subprocess.run(
        [sys.executable, "-S", "-m", "stoker_run", "start", folder], check=True, timeout=PROGRAM_S, env=ENV
    )
    return wait_for_exit(folder)


PACKAGES = [str(Path(package.__file__).parents[1]) for package in (stoker_run, stoker_base)]
ENV = {**os.environ, "PYTHONPATH": ":".join(PACKAGES)}


def living(folder: Path) -> list[str]:
    """The processes that carry the key of an attempt."""
    wanted = f"{KEY}={os.path.realpath(folder)}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("script", "outcome", "status", "signalled", "last"),
    [
        ("print('fine')", "exited", 0, None, None),
        ("import sys; sys.exit(3)", "exited", 3, None, None),
        ("raise ValueError('no data')", "exited", 1, None, "ValueError: no data"),
        ("def f(:", "exited", 1, None, "SyntaxError: "),
        ("import os; os.kill(os.getpid(), 9)", "signalled", None, "SIGKILL", None),
        ("raise MemoryError", "exited", 1, None, "MemoryError"),
    ],
)
def test_exit_record_describes_the_end_of_the_script(
    script: str, outcome: str, status: int | None, signalled: str | None, last: str | None, attempt: Attempt
) -> None:
    """Exit status, signal, traceback, and a lack of memory."""
    found = in_process(attempt(script))
    assert (found["outcome"], found["exit_status"], found["signal"]) == (outcome, status, signalled)
    assert found["out_of_memory"] is (last == "MemoryError")
    trace = found["traceback"]
    assert trace is None if last is None else trace.splitlines()[-1].startswith(last)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"command": ["/no/such/python", "a.py"]},
            "/no/such/python cannot be started: No such file or directory",
        ),
        ({"directory": "other"}, "there is no folder "),
    ],
)
def test_failed_start_has_its_reason(given: dict[str, Any], reason: str, attempt: Attempt) -> None:
    """A script that cannot be started ends as `not_started` with the reason."""
    found = in_process(attempt("", **given))
    assert found["outcome"] == "not_started"
    assert found["reason"].startswith(reason)


def test_an_attempt_is_started_once(zipped: Path, attempt: Attempt) -> None:
    """A second start does nothing beside a living agent and after its end; a refused one starts nothing."""
    folder = attempt("import time; time.sleep(600)")
    detached(zipped, folder)
    command = [sys.executable, "-S", zipped, "start", folder]
    second = subprocess.run(command, capture_output=True, check=False)
    assert (second.returncode, b"another agent has" in second.stderr) == (3, True)
    observing.stop(folder, 0.0)
    assert wait_for_exit(folder)["reason"] == "canceled"
    third = subprocess.run(command, capture_output=True, check=False)
    assert (third.returncode, b"an attempt is started once" in third.stderr) == (3, True)
    (folder / "start.json").write_text("{}")
    wrong = subprocess.run(command, capture_output=True, check=False)
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)


def test_nothing_is_left_after_a_stop(zipped: Path, attempt: Attempt) -> None:
    """Processes that ignore SIGTERM, also children in sessions of their own, are killed after the grace."""
    folder = attempt(GRANDCHILDREN)
    detached(zipped, folder)
    until(lambda: b"ready" in (folder / "log_0.txt").read_bytes(), "the script is not ready")
    assert len(living(folder)) == 3
    observing.stop(folder, 0.2)
    found = wait_for_exit(folder)
    assert (found["outcome"], found["reason"], found["traceback"]) == ("stopped", "canceled", None)
    assert living(folder) == []


def test_nothing_is_left_after_a_kill_of_the_agent(zipped: Path, attempt: Attempt) -> None:
    """The lock is free then, and there is no exit."""
    folder = attempt(GRANDCHILDREN)
    number = detached(zipped, folder)
    until(lambda: b"ready" in (folder / "log_0.txt").read_bytes(), "the script is not ready")
    os.kill(number, signal.SIGKILL)
    until(lambda: not observing.observe(folder)["alive"], "the attempt is alive")
    assert living(folder) == []
    assert observing.observe(folder)["exit"] is None


def test_processes_left_by_a_script_are_ended_with_it(attempt: Attempt) -> None:
    """A daemon that left its session and holds the log open is ended too."""
    folder = attempt("import subprocess; subprocess.Popen(['setsid', 'sleep', '600']); print('bye')")
    found = in_process(folder)
    assert (found["outcome"], found["exit_status"], found["left_over"]) == ("exited", 0, 1)
    assert living(folder) == []
    assert (folder / "log_0.txt").read_bytes() == b"bye\n"


def test_a_lease_that_is_not_renewed_ends_the_script(zipped: Path, attempt: Attempt) -> None:
    """And only then: as long as it is renewed the script goes on."""
    folder = attempt("import time; print('up'); time.sleep(600)", lease_s=0.5, grace_s=0.1)
    replace_json(folder / "lease.json", {"renewal": 0})
    detached(zipped, folder)
    found = wait_for_exit(folder)
    assert (found["outcome"], found["reason"]) == ("lease_lost", "not renewed for 0.5 s")


def test_a_lease_counts_from_the_heartbeat_that_it_answers(zipped: Path, attempt: Attempt) -> None:
    """Of one that is read long after, nothing is left, and no time for a last checkpoint either."""
    folder = attempt(GRANDCHILDREN, lease_s=60.0, grace_s=60.0)
    detached(zipped, folder)
    until(lambda: b"ready" in (folder / "log_0.txt").read_bytes(), "the script is not ready")
    # The first one is written once the script runs.
    until((folder / "heartbeat.json").exists, "there is no heartbeat")
    heard_s = json.loads((folder / "heartbeat.json").read_bytes())["up_s"]
    replace_json(folder / "lease.json", {"heard_s": heard_s - 121})
    found = wait_for_exit(folder)
    assert (found["outcome"], found["reason"]) == ("lease_lost", "not renewed for 60 s")
    assert living(folder) == []


def test_a_script_that_takes_too_long_is_ended(attempt: Attempt) -> None:
    """The agent ends it alone."""
    found = in_process(attempt("import time; time.sleep(600)", max_duration_s=0.1, grace_s=0.1))
    assert (found["outcome"], found["reason"]) == ("timed_out", "ran longer than 0.1 s")


def test_all_processes_or_none(attempt: Attempt) -> None:
    """One fails: the others go too, and the attempt has failed by that one; each has its log and its rank."""
    script = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(600)
"""
    folder = attempt(script, processes=2, communicator="pytorch", grace_s=PROGRAM_S)
    found = in_process(folder)
    assert (found["outcome"], found["exit_status"], found["rank"]) == ("exited", 7, 1)
    assert [one["signal"] for one in found["processes"]] == ["SIGTERM", None]
    assert (folder / "log_1.txt").read_text() == "rank 1 of 2\n"
    statuses = [
        (line["process_name"], line["status"]) for line in read_json_lines(folder / "process_status.json")
    ]
    assert statuses == [("0", "Started"), ("1", "Started"), ("1", "Failed"), ("0", "Failed")]


def test_parameter_servers_end_with_the_workers(attempt: Attempt) -> None:
    """They would wait for ever."""
    script = """
import json, os, time
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "ps":
    time.sleep(600)
"""
    folder = attempt(script, processes=2, communicator="tensorflow", parameter_servers=1)
    assert (in_process(folder)["outcome"], in_process_status(folder)) == ("exited", [0, None])


def in_process_status(folder: Path) -> list[int | None]:
    return [one["exit_status"] for one in json.loads((folder / "exit.json").read_text())["processes"]]
