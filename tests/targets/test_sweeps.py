"""Whole sweeps on this machine, with real runners that are killed, by commands, Python and code for Azure's SDK."""

import os
import signal
import time
from pathlib import Path

import pytest

from stoker.launch.adoption import adopt_all
from stoker.launch.following import wait
from stoker.launch.submission import Request
from stoker.runs.definition import Definition
from stoker.runs.folder import RunFolder
from stoker.runs.states import Status
from stoker.runs.store import RunStore
from stoker.tuning.children import trials_of
from stoker.tuning.policies import Bandit
from stoker.tuning.samplers import sampler
from stoker.tuning.spaces import expression
from stoker.tuning.submission import submit_sweep
from stoker.tuning.terms import Terms, terms
from stoker.workspace import Workspace

pytestmark = pytest.mark.targets

SCRIPT = """
import argparse, os, time
from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--began")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--sleep", type=float, default=0.0)
args = parser.parse_args()
with open(args.began, "a") as file:
    file.write(os.environ["STOKER_RUN_ID"] + "\\n")
run = Run.get_context()
for epoch in range(args.epochs):
    run.log("acc", args.rate * (epoch + 1))
    time.sleep(args.sleep)
"""


class Project:
    """A folder with a script that says when it begins."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self.path, self.workspace = path / "digits", workspace
        self.store = RunStore(workspace.runs_dir)
        self.began = path / "began.txt"
        self.began.touch()
        self.path.mkdir()
        (self.path / "train.py").write_text(SCRIPT)

    def submit(self, asked: Terms, *arguments: str) -> RunFolder:
        definition = Definition("train.py", ("--began", str(self.began), *arguments), grace_s=2.0)
        return submit_sweep(Request(definition, self.path), asked, self.workspace)[0]

    def has_begun(self) -> list[str]:
        """The children whose scripts have begun, each time that they have."""
        return self.began.read_text().splitlines()


@pytest.fixture
def project(tmp_path: Path, workspace: Workspace) -> Project:
    return Project(tmp_path, workspace)


def rates(*values: float, at_once: int = 2, runs: int = 100, policy: Bandit | None = None) -> Terms:
    grid = sampler("grid", {"--rate": expression("choice", *values)})
    return terms(grid, "acc", "maximize", runs, at_once, policy)


def kill_sweep(folder: RunFolder) -> int:
    """Kill the runner of a sweep, by its command line; returns how many there were."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            # Its forks, the runners of its children, have the same.
            is_fork = (place / "comm").read_text() == "stoker-runner\n"
        except OSError:
            continue
        if b"stoker.tuning.sweep_process" in words and str(folder.path).encode() in words and not is_fork:
            found.append(int(place.name))
    for number in found:
        os.kill(number, signal.SIGKILL)
    while folder.has_runner():
        time.sleep(0.02)
    return len(found)


def test_a_killed_sweep_goes_on_and_repeats_nothing(project: Project) -> None:
    """Killed after three of eight have begun, twice; the next command adopts it, and each child runs once."""
    folder = project.submit(rates(*(number / 10 for number in range(8))), "--sleep", "0.4")
    for count in (3, 5):
        while len(project.has_begun()) < count:
            time.sleep(0.02)
        assert kill_sweep(folder) == 1
        assert folder.id in adopt_all(project.workspace)
    state = wait(folder, project.workspace)
    assert (state.status, state.reason) == (Status.COMPLETED, "")
    assert sorted(project.has_begun()) == [f"{folder.id}_{number}" for number in range(8)]
    trials = trials_of(folder, project.store)
    assert [trial.number for trial in trials] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert {trial.status for trial in trials} == {Status.COMPLETED}


def test_a_cancelled_sweep_leaves_nothing_running(project: Project) -> None:
    """Those that run are Canceled, the others never begin."""
    folder = project.submit(rates(0.1, 0.2, 0.3, 0.4), "--sleep", "300")
    while len(project.has_begun()) < 2:
        time.sleep(0.02)
    folder.ask_to_cancel("by its user", 1)
    assert wait(folder, project.workspace).status is Status.CANCELED
    trials = trials_of(folder, project.store)
    assert [trial.status for trial in trials] == [Status.CANCELED] * 2
    assert {trial.reason for trial in trials} == {"its sweep was canceled by its user"}


def test_poor_children_are_ended_early(project: Project) -> None:
    """The best goes on to its end; a run a tenth as good is ended at its second value, and says why."""
    policy = Bandit(slack_factor=0.5, evaluation_interval=2)
    asked = rates(1.0, 0.1, at_once=1, policy=policy)
    folder = project.submit(asked, "--epochs", "40", "--sleep", "0.05")
    assert wait(folder, project.workspace).status is Status.COMPLETED
    best, poor = trials_of(folder, project.store)
    assert (best.status, best.best, best.count) == (Status.COMPLETED, 40.0, 40)
    assert poor.status is Status.CANCELED
    assert poor.reason.startswith("Bandit(slack_factor=0.5, evaluation_interval=2): ")
    assert poor.count < 40
