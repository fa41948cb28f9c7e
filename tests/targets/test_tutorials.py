"""Tutorials for Azure's SDK as users have them, from nothing to a service: real packages, real training, real MNIST.

Environments are shared by the tests: what one has built, the others find.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_server import free_port

from stoker.environments.interpreters import find_interpreter
from stoker.settings.workspace import Workspace
from stoker_runs.environments.requested import RequestedEnvironment
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.store import RunStore
from stoker_runs.run_environment import prepare_environment

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("STOKER_TEST_SHARED", ROOT.parent / "shared"))
TRAINING = SHARED / "azure" / "training"
LEGACY_KERAS = ROOT / ".venv" / "tf-keras"
LONGEST_S = 1200.0

pytestmark = [
    pytest.mark.targets,
    pytest.mark.timeout(LONGEST_S),
    pytest.mark.skipif(
        not TRAINING.is_dir(),
        reason=f"the tutorials are not at {SHARED}; set STOKER_TEST_SHARED to the folder with azure/ and data/",
    ),
]

# The tutorial's last steps, with two rates in the place of a search.
TO_A_SERVICE = """
import gzip, json, sys
import numpy as np
from azureml.core import Environment, Experiment, Model, ScriptRunConfig, Workspace
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.webservice import LocalWebservice

ws = Workspace.create("five")
store = ws.get_default_datastore()
store.upload("data", "mnist", show_progress=False)
env = Environment("tf-env")
env.python.conda_dependencies = CondaDependencies.create(
    pip_packages=["tensorflow==2.4.0", "Pillow"], conda_packages=["SciPy"]
)
runs = []
for rate in (0.001, 0.1):
    arguments = ["--data-folder", store.path("mnist").as_mount(), "--epochs", 1, "--learning-rate", rate]
    config = ScriptRunConfig("train_script", "tf_mnist.py", arguments, environment=env)
    runs.append(Experiment(ws, "tf-mnist").submit(config))
for run in runs:
    run.wait_for_completion()
best = max(runs, key=lambda run: run.get_metrics()["final_acc"])
print("best", runs.index(best))
model = best.register_model("tf-dnn-mnist", "outputs/model")
print("model", model.id, model.run_id == best.id)
configuration = LocalWebservice.deploy_configuration(port=int(sys.argv[1]))
service = Model.deploy(ws, "tf-svc", [model], deployment_config=configuration)
try:
    service.wait_for_deployment()
    images = np.frombuffer(gzip.open("data/t10k-images-idx3-ubyte.gz").read(), np.uint8, offset=16).reshape(-1, 784)
    labels = np.frombuffer(gzip.open("data/t10k-labels-idx1-ubyte.gz").read(), np.uint8, offset=8)
    classes = []
    for begin in range(0, len(images), 500):
        rows = np.round(images[begin : begin + 500] / np.float32(255), 6).astype(float).tolist()
        answer = service.run(json.dumps({"data": rows}))
        classes.extend(np.asarray(answer if isinstance(answer, list) else json.loads(answer)).argmax(axis=1))
    scored = np.mean(np.asarray(classes) == labels)
    print("as in the run", abs(scored - best.get_metrics()["final_acc"]) < 2e-4)
finally:
    service.delete()
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of environments that all workspaces here have."""
    return tmp_path_factory.mktemp("environments")


@pytest.fixture
def tutorial(tmp_path: Path, environments: Path) -> Tutorial:
    return Tutorial(tmp_path, environments)


class Tutorial:
    """A copy of a tutorial's folder, with a workspace of its own."""

    def __init__(self, folder: Path, environments: Path) -> None:
        self.folder = folder / "tutorial"
        self.workspace = Workspace(folder / "workspace").create()
        self.workspace.environments_dir.symlink_to(environments)

    def copy(self, name: str) -> None:
        shutil.copytree(TRAINING / name, self.folder, copy_function=shutil.copyfile)
        self.folder.chmod(0o700)

    def run(self, *arguments: str, module: str = "stoker.azure") -> list[str]:
        """Run a script as a user does; returns the lines that it prints."""
        settings = {
            "DEVICE": "cpu",
            "FRONTENDS": "1",
            "DRAIN_GRACE_S": "0",
            "WORKSPACE": str(self.workspace.root),
        }
        environ = {**os.environ, **{f"STOKER_{name}": value for name, value in settings.items()}}
        environ["PYTHONPATH"] = str(LEGACY_KERAS)
        environ["MPLBACKEND"] = "agg"
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    def runs(self) -> list[RunFolder]:
        """Its runs, the first one first."""
        return sorted(RunStore(self.workspace.runs_dir).folders(), key=lambda one: one.record().created_ms)


@pytest.mark.skipif(not LEGACY_KERAS.is_dir(), reason="make test-targets installs Keras 2 beside the server")
def test_the_tutorial_with_images_of_waste(tutorial: Tutorial) -> None:
    """Unchanged, with today's packages: data uploaded once, ten epochs, outputs back, the model read and drawn."""
    tutorial.copy("waste")
    subprocess.run([sys.executable, "make_images.py"], cwd=tutorial.folder, check=True, timeout=LONGEST_S)
    assert tutorial.run("setup_workspace.py")[-1] == "Uploaded 120 files"
    again = tutorial.run("setup_workspace.py")
    assert sum(line.startswith("Target already exists. Skipping upload for data/") for line in again) == 120
    printed = "\n".join(tutorial.run("--environment", "relaxed", "submit.py"))
    assert "Completed" in printed
    assert "(None, None, None, 32)    416" in printed
    assert "3096774" in printed
    assert "Total params: 3097190" in printed
    fetched = tutorial.folder / "cloud_files"
    for name in ("model.history", "saved_model.pb", "variables"):
        assert (fetched / "outputs" / name).exists()
    log = (fetched / "azureml-logs" / "70_driver_log.txt").read_text()
    assert "Found 96 images belonging to 6 classes." in log
    assert "Epoch 10/10" in log
    assert (tutorial.folder / "history.png").stat().st_size > 1000
    (run,) = tutorial.runs()
    got = (run.environment / "got.txt").read_text()
    assert "# tf.keras is Keras 2, of the package tf-keras: TF_USE_LEGACY_KERAS=1" in got
    assert "tensorflow==2.4.0" in (run.environment / "asked.yml").read_text()
    assert "waste_images" in run.record().data


def test_the_tutorial_with_mnist(tutorial: Tutorial) -> None:
    """Unchanged, with the packages that it pins: the metrics of its text, and a model that names the run."""
    tutorial.copy("mnist")
    shutil.copytree(SHARED / "data" / "mnist", tutorial.folder / "data", copy_function=shutil.copyfile)
    (tutorial.folder / "once.py").write_text(
        "from azureml.core import Workspace\nWorkspace.create('mnist').write_config(path='.azureml')\n"
    )
    tutorial.run("once.py")
    printed = tutorial.run("submit.py")
    (metrics,) = [line for line in printed if line.startswith("{'regularization rate': 0.5, 'accuracy': ")]
    assert round(float(metrics.rpartition(" ")[2].rstrip("}")), 2) == 0.87
    assert any("outputs/sklearn_mnist_model.pkl" in line for line in printed)
    listed = "\n".join(tutorial.run("models", "show", "sklearn_mnist:1", module="stoker.cli"))
    (run,) = tutorial.runs()
    assert run.id in listed
    got = (run.environment / "got.txt").read_text()
    assert "scikit-learn==1.5.1" in got
    assert "numpy==1.23.5" in got


def test_the_best_run_becomes_a_service(tutorial: Tutorial) -> None:
    """Two runs of TensorFlow; the better one's model is registered, deployed, and scores as it did in the run."""
    tutorial.copy("mnist")
    shutil.copytree(SHARED / "data" / "mnist", tutorial.folder / "data", copy_function=shutil.copyfile)
    (tutorial.folder / "service.py").write_text(TO_A_SERVICE)
    port = str(free_port())
    printed = tutorial.run("--environment", "relaxed", "service.py", port)
    assert [line for line in printed if line.startswith(("best", "model", "as in"))] == [
        "best 1",
        "model tf-dnn-mnist:1 True",
        "as in the run True",
    ]
    shown = "\n".join(tutorial.run("models", "show", "tf-dnn-mnist", module="stoker.cli"))
    best = tutorial.runs()[1]
    assert best.id in shown
    assert best.record().snapshot in shown
    assert best.record().data["workspaceblobstore"] in shown
    # They were submitted together: one has built, or neither had to, and the other one has waited.
    assert sum((run.environment / "build.log").exists() for run in tutorial.runs()) <= 1


@pytest.mark.skipif(find_interpreter(7) is None, reason="there is no Python 3.7 on this machine")
def test_pins_of_2020_are_installed_as_of_2020(tmp_path: Path, environments: Path) -> None:
    """Flask 1.1.2 cannot import the Jinja2 of today; with that of its time, and a Python of then, it can."""
    folder = tmp_path / "run" / "environment"
    folder.mkdir(parents=True)
    (folder / "asked.txt").write_text("Flask==1.1.2\n")
    notes: list[str] = []
    requested = RequestedEnvironment("exact", file="asked.txt")
    for _ in range(2):
        built = prepare_environment(requested, folder, environments, notes.append)
    assert sum("building an environment" in line for line in notes) == 2
    assert any("trying once more as of 2020-07-02" in line for line in notes)
    got = (folder / "got.txt").read_text()
    assert "# Python 3.7." in got
    assert "jinja2==2.11.2" in got
    subprocess.run([built.interpreter, "-c", "import flask"], check=True, timeout=LONGEST_S)
