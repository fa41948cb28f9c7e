"""Runs of several processes: trained together, and ended together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.patience import PROGRAM_S
from tests.targets.test_conformance import processes_of
from tests.targets.test_local_runs import Project
from tests.unit.stoker_training.conftest import tiny_mnist  # noqa: F401  # a fixture

from stoker.settings.workspace import Workspace
from stoker_run.json_files import read_json_lines
from stoker_runs.launch.following import wait
from stoker_runs.records.folder import log_file
from stoker_runs.records.states import Status

pytestmark = pytest.mark.targets

EVEN_IF_ALONE = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
TWO_DEVICES = """
import sys
from pathlib import Path
from stoker_training.frameworks import tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from stoker_training.digits import load_digits
from stoker_training.fitting import fit
from stoker_training.spec import TrainingSpec
digits = load_digits(Path(sys.argv[1]), print)
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
found = fit(TrainingSpec("softmax", epochs=2), digits, mirrored, print)
print(found.batch_rows, found.history["accuracy"][-1] > 0.5, len(found.model.get_weights()))
"""

PEERS = """
import json, os, time
from azureml.core import Run
found = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "OMPI_COMM_WORLD_RANK")}
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
task = config.get("task", {})
open("outputs/found.txt", "w").write(" ".join(map(str, [*found.values(), *task.values()])))
Run.get_context().log("rank", int(found["RANK"]))
print("I am", found["RANK"])
if task.get("type") == "ps":
    open(SERVED, "w").close()
# Parameter servers are ended with the last worker.
while task.get("type") == "worker" and "ps" in config["cluster"] and not os.path.exists(SERVED):
    time.sleep(0.02)
"""
SUBMIT = """
import json
from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.runconfig import MpiConfiguration, PyTorchConfiguration, TensorflowConfiguration
ws = Workspace.create("several")
for distribution in (
    MpiConfiguration(process_count_per_node=2, node_count=1),
    PyTorchConfiguration(process_count=2, node_count=2),
    TensorflowConfiguration(worker_count=1, parameter_server_count=1),
):
    config = ScriptRunConfig("src", "peers.py", distributed_job_config=distribution)
    run = Experiment(ws, "several").submit(config)
    run.wait_for_completion(show_output=True)
    run.download_files(prefix="outputs", output_directory=run.id)
    files = sorted(name for name in run.get_file_names() if "found" in name)
    said = [open(f"{run.id}/{name}").read() for name in files]
    print("RESULT", json.dumps([files, said, sorted(run.get_metrics()["rank"])]))
"""


@pytest.fixture
def project(tmp_path: Path, workspace: Workspace) -> Project:
    return Project(tmp_path / "digits", workspace)


def test_two_nodes_train_one_model(tiny_mnist: Path, tmp_path: Path) -> None:  # noqa: F811
    """Both workers end with the same weights, and one model is the run's, with the accuracy of a single process."""
    command = [
        sys.executable,
        "-m",
        "stoker.cli",
        "train",
        "mnist",
        "--network",
        "softmax",
        "--epochs",
        "4",
        "--gpus",
        "0",
    ]
    output, workspace = tmp_path / "outputs", Workspace(tmp_path / ".stoker")
    done = subprocess.run(
        [*command, "--nodes", "2", "--data", tiny_mnist, "--output", output, "--workspace", workspace.root],
        capture_output=True, text=True, check=False, timeout=PROGRAM_S, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes on local, which is one machine: it runs all 2 processes" in done.stderr
    run = next(workspace.runs_dir.glob("mnist/mnist_*"))
    logs = [(run / "attempts" / "1" / f"log_{rank}.txt").read_text() for rank in range(2)]
    weights = [[line for line in log.splitlines() if "have the same weights" in line] for log in logs]
    assert weights[0] == weights[1] != []
    assert "Worker 0 has written the outputs." in logs[1]
    assert (output / "saved_model").is_dir()
    assert not list(output.glob("rank_*"))
    assert "Test accuracy 100.00%" in logs[0]


def test_several_devices_of_one_node_train_together(tiny_mnist: Path) -> None:  # noqa: F811
    """Two devices of one process take twice the rows in a step, and give one plain model."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, tiny_mnist],
        capture_output=True, text=True, check=False, timeout=PROGRAM_S,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "8 True 2", done.stdout + done.stderr


def test_the_sdks_distributions_run_unchanged(tmp_path: Path) -> None:
    """MPI's, PyTorch's and TensorFlow's, parameter servers too: variables, files, values and the log of the first."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "peers.py").write_text(PEERS.replace("SERVED", repr(str(tmp_path / "served"))))
    (tmp_path / "submit.py").write_text(SUBMIT)
    done = subprocess.run(
        [sys.executable, "-m", "stoker.azure", "submit.py"],
        capture_output=True, text=True, check=False, timeout=PROGRAM_S, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Streaming azureml-logs/70_driver_log_0.txt") == 3
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    files = ["outputs/found.txt", "outputs/rank_1/found.txt"]
    assert found == [
        [files, ["0 0 0 0", "1 1 0 1"], [0, 1]],
        [files, ["0 0 0 None", "1 0 1 None"], [0, 1]],
        [files, ["0 0 0 None worker 0", "1 0 1 None ps 0"], [0, 1]],
    ]


def test_a_killed_process_ends_the_attempt_at_once(project: Project) -> None:
    """The others are ended too, long before they would end by themselves; the error names the process."""
    folder = project.submit(EVEN_IF_ALONE, nodes=2, processes_per_node=2, grace_s=PROGRAM_S)
    while not all(log_file(folder, 1, rank).exists() for rank in range(4)):
        time.sleep(0.02)
    project.wait_for_output(folder, "up")
    numbers = {
        line["process_name"]: line["pid_in_container"]
        for line in read_json_lines(folder.attempt(1) / "process_info.json")
    }
    os.kill(numbers["2"], signal.SIGKILL)
    state = wait(folder, project.workspace)
    assert (state.status, state.error and state.error.code) == (Status.FAILED, "Killed")
    assert state.error
    assert state.error.message == "process 2: the script was killed by SIGKILL"
    assert processes_of(folder.id) == []
