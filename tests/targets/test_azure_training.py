"""Code for Azure's SDK and for MLflow, run as users run it: real runners, real scripts, real packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PROGRAM_S
from tests.targets.test_local_runs import Project

import stoker_runs
from stoker.settings.workspace import Workspace
from stoker_runs.records.comparing import parameters_of
from stoker_runs.records.states import Status

pytestmark = pytest.mark.targets

ROOT = Path(__file__).parents[2]
MLFLOW = ROOT / ".venv" / "mlflow" / "bin" / "python"

SUBMIT = """
from azureml.core import Environment, Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.exceptions import ActivityFailedException

ws = Workspace.create("demo")
target = ComputeTarget.create(ws, "cpu", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=1))
store = ws.get_default_datastore()
data = store.upload("src", "data", show_progress=False)
config = ScriptRunConfig("src", "train.py", ["--data", data.as_mount(), "--fail", 0], compute_target=target)
run = Experiment(ws, "digits").submit(config)
run.wait_for_completion(show_output=True)
print(run.get_status(), run.get_metrics(), run.get_details()["target"])
run.download_files("outputs/", "here")
print(open("here/outputs/model.txt").read())
model = run.register_model("digits", "outputs/model.txt")
print(model.id, model.run_id == run.id)
config.arguments[-1] = 1
failing = Experiment(ws, "digits").submit(config)
try:
    failing.wait_for_completion()
except ActivityFailedException as error:
    print(failing.get_status(), "KeyError: 'no data'" in str(error))
"""

TRAIN = """
import os, sys
from azureml.core import Run
from azureml.logging import get_azureml_logger
run = Run.get_context()
print("data:", sorted(os.listdir(sys.argv[2])), "run:", run.experiment.name)
if sys.argv[4] == "1":
    raise KeyError("no data")
run.log("accuracy", 0.5)
run.log("accuracy", float("nan"))
get_azureml_logger().log("loss", [1, 2])
open("outputs/model.txt", "w").write("weights")
"""

WITH_MLFLOW = """
import os
import mlflow

mlflow.log_param("lr", 0.1)
for step in range(3):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
mlflow.set_tag("team", "vision")
mlflow.log_text("hello", "notes/a.txt")
mlflow.end_run()
mlflow.set_experiment("of-the-script")
with mlflow.start_run(run_name="child"):
    mlflow.log_metric("c", 1)
print(mlflow.get_run(os.environ["STOKER_RUN_ID"]).data.metrics)
"""


WITH_AUTOLOG = """
import os, sys
sys.path.append(os.environ["PACKAGES_OF_MLFLOW"])
import keras
import mlflow
import numpy as np

mlflow.keras.autolog(log_models=False)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
model.compile(optimizer=keras.optimizers.SGD(0.25), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
x = np.random.default_rng(0).normal(size=(32, 4))
print(model.fit(x, (x[:, 0] > 0).astype(int), epochs=3, batch_size=8, verbose=0).history["loss"])
"""


def test_code_for_the_sdk_runs_unchanged(tmp_path: Path) -> None:
    """Submitted, followed, measured, downloaded, registered; and failing with its traceback."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(TRAIN)
    (tmp_path / "submit.py").write_text(SUBMIT)
    environ = {**os.environ, "STOKER_WORKSPACE": str(tmp_path / "home")}
    command = [sys.executable, "-m", "stoker.azure", "submit.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "data: ['train.py'] run: digits" in lines
    assert lines[-4:] == [
        "Completed {'accuracy': [0.5, nan], 'loss': [1, 2]} cpu",
        "weights",
        "digits:1 True",
        "Failed True",
    ]


@pytest.mark.skipif(not MLFLOW.exists(), reason="make test-targets makes the environment with MLflow")
def test_runs_are_mirrored_once(workspace: Workspace, tmp_path: Path) -> None:
    """Twice into SQLite: each run is there once, with its parameters, values and status."""
    with stoker_runs.start_run("digits") as run:
        for step in range(3):
            run.log("loss", 1 / (step + 1), step=step)
    (packages,) = MLFLOW.parents[1].glob("lib/python3*/site-packages")
    environ = {**os.environ, "PYTHONPATH": str(packages), "STOKER_WORKSPACE": str(workspace.root)}
    address = f"sqlite:///{tmp_path}/x.db"
    command = [sys.executable, "-m", "stoker.cli", "runs", "mirror", "--to", address]
    for new in (1, 0):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=True)
        assert done.stdout == f"{new} of 1 run had something new for {address}\n"
    look = (
        "from mlflow.tracking import MlflowClient\nimport sys\nclient = MlflowClient(tracking_uri=sys.argv[1])\n"
        "key = client.get_experiment_by_name('digits').experiment_id\n"
        "for run in client.search_runs([key]):\n"
        "    values = client.get_metric_history(run.info.run_id, 'loss')\n"
        "    print(run.info.run_name, run.info.status, [one.step for one in values])\n"
    )
    seen = subprocess.run(
        [MLFLOW, "-c", look, address], capture_output=True, text=True, timeout=300, check=True
    )
    assert seen.stdout == f"{run.id} FINISHED [0, 1, 2]\n"


@pytest.mark.skipif(not MLFLOW.exists(), reason="make test-targets makes the environment with MLflow")
def test_autolog_of_keras_logs_into_the_run(workspace: Workspace, tmp_path: Path) -> None:
    """`mlflow.keras.autolog` with the real MLflow and Keras: values of each epoch, parameters, a summary."""
    (packages,) = MLFLOW.parents[1].glob("lib/python3*/site-packages")
    project = Project(tmp_path / "digits", workspace)
    folder, state = project.run_to_end(WITH_AUTOLOG, variables={"PACKAGES_OF_MLFLOW": str(packages)})
    printed = (folder.attempt(1) / "log_0.txt").read_text()
    assert state.status is Status.COMPLETED, printed
    losses = json.loads(printed.splitlines()[-1])
    logged = [(line["s"], line["v"]) for line in folder.metric_lines() if line["k"] == "loss"]
    assert logged == list(enumerate(losses))
    assert [line["s"] for line in folder.metric_lines() if line["k"] == "accuracy"] == [0, 1, 2]
    parameters = parameters_of(folder)
    assert {name: parameters[name] for name in ("epochs", "batch_size", "optimizer_name")} == {
        "epochs": "3",
        "batch_size": "8",
        "optimizer_name": "sgd",
    }
    assert "dense" in (folder.outputs / "model_summary.txt").read_text()


@pytest.mark.skipif(not MLFLOW.exists(), reason="make test-targets makes the environment with MLflow")
def test_values_logged_by_mlflow_are_in_the_run(tmp_path: Path) -> None:
    """By the plug-in on the script's path: parameters, metrics with steps, tags, artifacts, a child run."""
    attempt, work = tmp_path / "attempt", tmp_path / "work"
    for folder in (attempt, work):
        folder.mkdir()
    (work / "train.py").write_text(WITH_MLFLOW)
    start = {
        "version": 1,
        "run_id": "digits_1_0a1b2c3d",
        "experiment": "digits",
        "attempt": 1,
        "command": [str(MLFLOW), "train.py"],
        "directory": str(work),
    }
    (attempt / "start.json").write_text(json.dumps(start))
    subprocess.run([sys.executable, "-m", "stoker_run", "start", attempt], check=True, timeout=PROGRAM_S)
    printed = (attempt / "log_0.txt").read_text()
    assert json.loads((attempt / "exit.json").read_text())["exit_status"] == 0, printed
    assert "{'loss': 0.3333333333333333}" in printed
    metrics = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
    assert [(line["k"], line["s"]) for line in metrics] == [("loss", 0), ("loss", 1), ("loss", 2)]
    events = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]
    assert {(event["e"], event.get("k"), str(event["v"])) for event in events} >= {
        ("param", "lr", "0.1"),
        ("tag", "team", "vision"),
    }
    assert (work / "outputs" / "notes" / "a.txt").read_text() == "hello"
    child = attempt / "children" / "digits_1_0a1b2c3d_0"
    assert json.loads((child / "child.json").read_text())["name"] == "child"
    assert json.loads((child / "exit.json").read_text())["exit_status"] == 0
