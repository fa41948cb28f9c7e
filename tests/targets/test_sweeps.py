"""Whole sweeps on this machine, with real runners that are killed, by commands, Python and code for Azure's SDK."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.patience import PROGRAM_S

from stoker.settings.workspace import Workspace
from stoker.system.durable import find_lock_holder
from stoker_runs.launch.following import wait
from stoker_runs.launch.runners import adopt_all
from stoker_runs.launch.submission import Request
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition
from stoker_runs.records.states import Status
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.children import submit_sweep, trials_of
from stoker_runs.tuning.definition import SweepDefinition, define_sweep, expression, sampler
from stoker_runs.tuning.policies import Bandit, Hyperband

pytestmark = pytest.mark.targets

SHARED = (
    Path(os.environ.get("STOKER_TEST_SHARED", Path(__file__).parents[3] / "shared")) / "azure" / "training"
)

SCRIPT = """
import argparse, os, time
from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--began")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--gates")
args = parser.parse_args()
run_id = os.environ["STOKER_RUN_ID"]
with open(args.began, "a") as file:
    file.write(run_id + "\\n")
while args.gates and not os.path.exists(os.path.join(args.gates, run_id.rpartition("_")[2])):
    time.sleep(0.02)
run = Run.get_context()
for epoch in range(args.epochs):
    run.log("acc", args.rate * (epoch + 1))
    time.sleep(args.sleep / args.rate)
"""


class Project:
    """A folder with a script that says when it begins, and if it is given `gates`, waits there for its number."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self.path, self.workspace = path / "digits", workspace
        self.store = RunStore(workspace.runs_dir)
        self.began, self.gates = path / "began.txt", path / "gates"
        self.began.touch()
        self.path.mkdir()
        self.gates.mkdir()
        (self.path / "train.py").write_text(SCRIPT)

    def submit(self, terms: SweepDefinition, *arguments: str) -> RunFolder:
        definition = Definition("train.py", ("--began", str(self.began), *arguments), grace_s=2.0)
        return submit_sweep(Request(definition, self.path), terms, self.workspace)[0]

    def has_begun(self) -> list[str]:
        """The children whose scripts have begun, each time that they have."""
        return self.began.read_text().splitlines()

    def wait_for_begun(self, count: int) -> None:
        while len(self.has_begun()) < count:
            time.sleep(0.02)

    def open_gates(self, count: int) -> None:
        """Let the first `count` children go on."""
        for number in range(count):
            (self.gates / str(number)).touch()


@pytest.fixture
def project(tmp_path: Path, workspace: Workspace) -> Project:
    return Project(tmp_path, workspace)


def rates(*values: float, at_once: int = 2, runs: int = 100, policy: Bandit | None = None) -> SweepDefinition:
    grid = sampler("grid", {"--rate": expression("choice", *values)})
    return define_sweep(grid, "acc", "maximize", runs, at_once, policy)


def kill_sweep(folder: RunFolder) -> None:
    """Kill the runner of a sweep: it took the lock, which a fork of it has too until that closes its descriptors."""
    runner = find_lock_holder(folder.path / ".runner")
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    while folder.has_runner():
        time.sleep(0.02)


def test_a_killed_sweep_goes_on_and_repeats_nothing(project: Project) -> None:
    """Killed while two of eight run, twice; the next command adopts it, and each child runs once."""
    folder = project.submit(rates(*(number / 10 for number in range(1, 9))), "--gates", str(project.gates))
    for ended in (2, 4):
        project.open_gates(ended)
        project.wait_for_begun(ended + 2)
        kill_sweep(folder)
        assert folder.id in adopt_all(project.workspace)
    project.open_gates(8)
    state = wait(folder, project.workspace)
    assert (state.status, state.reason) == (Status.COMPLETED, "")
    assert sorted(project.has_begun()) == [f"{folder.id}_{number}" for number in range(8)]
    trials = trials_of(folder, project.store)
    assert [trial.number for trial in trials] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert {trial.status for trial in trials} == {Status.COMPLETED}


def test_a_bayesian_sweep_finds_the_best_after_a_kill(project: Project) -> None:
    """Killed in the sixth of fourteen: each child begins once, with the values of its record; the best is good."""
    pytest.importorskip("optuna", reason="needs Optuna")
    space = {"--rate": expression("uniform", 0, 1)}
    terms = define_sweep(sampler("bayesian", space, 1), "acc", "maximize", 14, 1, Hyperband(max_values=3))
    folder = project.submit(terms, "--epochs", "3", "--gates", str(project.gates))
    project.open_gates(5)
    project.wait_for_begun(6)
    kill_sweep(folder)
    adopt_all(project.workspace)
    project.open_gates(14)
    assert wait(folder, project.workspace).status is Status.COMPLETED
    trials = trials_of(folder, project.store)
    assert project.has_begun() == [f"{folder.id}_{number}" for number in range(14)]
    for trial in trials:
        definition = project.store.get(trial.id).record().definition
        assert definition.arguments[-2:] == ("--rate", str(trial.parameters["--rate"]))
    assert trials[0].best is not None
    assert trials[0].best > 2.5


def test_a_cancelled_sweep_leaves_nothing_running(project: Project) -> None:
    """Those that run are Canceled, the others never begin."""
    folder = project.submit(rates(0.1, 0.2, 0.3, 0.4), "--sleep", "300")
    project.wait_for_begun(2)
    folder.request_cancel("by its user", 1)
    assert wait(folder, project.workspace).status is Status.CANCELED
    trials = trials_of(folder, project.store)
    assert [trial.status for trial in trials] == [Status.CANCELED] * 2
    assert {trial.reason for trial in trials} == {"its sweep was canceled by its user"}


def test_poor_children_are_ended_early(project: Project) -> None:
    """The best goes on to its end; a run a tenth as good, and as fast, is ended at its second value, and says why."""
    policy = Bandit(slack_factor=0.5, evaluation_interval=2)
    terms = rates(1.0, 0.1, at_once=1, policy=policy)
    folder = project.submit(terms, "--epochs", "40", "--sleep", "0.05")
    assert wait(folder, project.workspace).status is Status.COMPLETED
    best, poor = trials_of(folder, project.store)
    assert (best.status, best.best, best.count) == (Status.COMPLETED, 40.0, 40)
    assert poor.status is Status.CANCELED
    assert poor.reason.startswith("Bandit(slack_factor=0.5, evaluation_interval=2): ")
    assert poor.count < 40


OF_THE_TUTORIAL = """
import argparse, os, time
from azureml.core import Run

parser = argparse.ArgumentParser()
for name in ("--data-folder", "--resume-from"):
    parser.add_argument(name)
for name in ("--batch-size", "--first-layer-neurons", "--second-layer-neurons", "--epochs"):
    parser.add_argument(name, type=int)
parser.add_argument("--learning-rate", type=float)
args = parser.parse_args()
print("data:", os.listdir(args.data_folder), "resumes:", bool(args.resume_from))
run = Run.get_context()
for epoch in range(args.epochs):
    run.log("validation_acc", args.learning_rate * (epoch + 1))
    time.sleep(0.1)
os.makedirs("outputs/model", exist_ok=True)
open("outputs/model/weights.txt", "w").write("weights")
"""
SET_UP = """
import os
from azureml.core import Dataset, Workspace

ws = Workspace.create("tuning")
ws.write_config()
os.makedirs("digits", exist_ok=True)
open("digits/images.gz", "w").write("x")
store = ws.get_default_datastore()
store.upload("digits", "mnist", show_progress=False)
Dataset.File.from_files((store, "mnist")).register(ws, "mnist_opendataset")
"""
REGISTER = """
from azureml.core import Environment, Workspace

Environment("azureml-tensorflow-2.11-cuda11").register(Workspace.from_config())
"""


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared has the projects of users")
def test_the_tutorial_for_hyperdrive_runs_unchanged(tmp_path: Path) -> None:
    """Three sweeps: one, one that is compared with it, one that goes on with a run that was ended.

    The script that it tunes is one that needs no TensorFlow, so that it takes no minutes.
    """
    folder = tmp_path / "mnist"
    shutil.copytree(SHARED / "mnist", folder, copy_function=shutil.copyfile)
    for path in (folder, folder / "train_script"):
        path.chmod(0o700)
    (folder / "train_script" / "tf_mnist.py").write_text(OF_THE_TUTORIAL)
    environ = {**os.environ, "STOKER_WORKSPACE": str(tmp_path / "home")}

    def run(name: str, text: str = "") -> subprocess.CompletedProcess[str]:
        if text:
            (folder / name).write_text(text)
        return subprocess.run(
            [sys.executable, "-m", "stoker.azure", name],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            check=False,
        )

    assert run("set_up.py", SET_UP).returncode == 0
    refused = run("tune.py")
    assert refused.returncode != 0
    assert "register one of this name with the packages that it had" in refused.stderr
    assert run("register.py", REGISTER).returncode == 0
    done = run("tune.py")
    assert done.returncode == 0, done.stdout + done.stderr
    store = RunStore(tmp_path / "home" / "runs")
    sweeps = [one for one in store.folders() if one.record().kind == "sweep"]
    sweeps.sort(key=lambda one: one.record().created_ms)
    first, warm = sweeps[:2]
    for sweep in sweeps:
        assert sorted(trial.number for trial in trials_of(sweep, store)) == list(range(8))
    assert "'--epochs', '6'" in done.stdout
    assert "outputs/model/weights.txt" in done.stdout
    assert warm.record().sweep["warm_start"] == [first.id]
    for again in sweeps[2:]:
        log = (store.get(f"{again.id}_0").attempt(1) / "log_0.txt").read_text()
        assert log == "data: ['images.gz'] resumes: True\n"


HDCONFIG = """
sampling:
    type: grid
    parameter_space:
    - {name: --rate, expression: choice, values: [0.1, 0.3, 0.2]}
policy: {type: NoTerminationPolicy}
primary_metric_name: acc
primary_metric_goal: Minimize
max_total_runs: 8
max_concurrent_runs: 2
"""


def test_commands_tune_and_show_the_best_first(project: Project) -> None:
    """Azure's command line and file, and then Stoker's own, followed to the end."""
    (project.path / "hdconfig.yml").write_text(HDCONFIG)
    (project.path / "local.runconfig").write_text("script: train.py\ntarget: local\nframework: Python\n")
    (project.path / "sweep.yaml").write_text(
        f"script: train.py\narguments: [--began, {project.began}]\nparameters: {{--rate: [0.1, 0.3]}}\n"
        "sampling: grid\nmetric: acc\ngoal: maximize\nruns: 5\n"
    )
    azure = (
        "az ml run submit-hyperdrive -e e -c local --hyperdrive-configuration-name hdconfig train.py --began"
    )
    best = []
    for words in ([*azure.split(), str(project.began)], ["tune", "sweep.yaml"]):
        done = subprocess.run(
            [sys.executable, "-m", "stoker.cli", *words],
            cwd=project.path,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        table = done.stdout[done.stdout.index("RUN  ") :].splitlines()
        best.append([line.split()[2] for line in table])
    assert best == [["ACC", "0.1", "0.2", "0.3"], ["ACC", "0.3", "0.1"]]
