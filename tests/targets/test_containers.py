"""Whole runs in real containers: packages, limits, failures, shared folders, killed runners."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.targets.containers import IMAGE, ready
from tests.targets.test_local_runs import Project, kill_runners

from stoker.cli import main
from stoker.settings.workspace import Workspace
from stoker_runs.launch.following import wait
from stoker_runs.launch.runners import adopt
from stoker_runs.launch.submission import Request, submit
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition
from stoker_runs.records.states import RunState, Status

pytestmark = pytest.mark.targets

RIDGE = """
import os
import joblib
import mylib
from azureml.core.run import Run
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import train_test_split

X, y = load_diabetes(return_X_y=True)
run = Run.get_context()
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
for alpha in mylib.get_alphas():
    reg = Ridge(alpha=alpha)
    reg.fit(X_train, y_train)
    mse = mean_squared_error(reg.predict(X_test), y_test)
    run.log("alpha", alpha)
    run.log("mse", mse)
    joblib.dump(value=reg, filename=os.path.join("./outputs/", "ridge_{0:.2f}.pkl".format(alpha)))
"""
SHARED = """
import os
path = os.environ["AZUREML_NATIVE_SHARE_DIRECTORY"] + "seen"
open(path, "a").write("x")
print(open(path).read())
"""


class Box(Project):
    """A project whose runs are in containers."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        super().__init__(path, workspace)
        self.configure(f"engine: podman\nimage: {IMAGE}\n")

    def configure(self, lines: str, name: str = "box") -> None:
        self.workspace.targets_dir.mkdir(exist_ok=True)
        (self.workspace.targets_dir / f"{name}.yaml").write_text(
            f"type: docker\n{lines}" if name == "box" else lines
        )

    def submit(self, script: str, environment_file: str = "", **options: object) -> RunFolder:
        return super().submit(script, environment_file, **{"target": "box", **options})

    def failed(self, script: str = "print(1)\n", **options: object) -> tuple[RunFolder, str, str]:
        folder, state = self.run_to_end(script, **options)
        assert (state.status, state.error is not None) == (Status.FAILED, True), state
        assert state.error is not None
        return folder, state.error.code, f"{state.error.message}; {state.error.hint}"


@pytest.fixture
def box(tmp_path: Path, workspace: Workspace) -> Box:
    ready()
    return Box(tmp_path / "digits", workspace)


def results(folder: RunFolder, state: RunState) -> dict[str, list[float]]:
    assert state.status is Status.COMPLETED, state
    found: dict[str, list[float]] = {}
    for line in folder.metric_lines():
        found.setdefault(line["k"], []).append(line["v"])
    return found


def test_the_same_script_gives_the_same_in_a_container(box: Box) -> None:
    """Its packages are installed inside; twenty values and models come back, and only the target differs."""
    (box.path / "mylib.py").write_text(
        "import numpy as np\ndef get_alphas():\n    return np.arange(0.0, 1.0, 0.05)\n"
    )
    (box.path / "train.py").write_text(RIDGE)
    packages = box.path / "environment.yml"
    packages.write_text("dependencies:\n- python=3.11\n- scikit-learn\n- joblib\n")
    found = []
    for target, environment in (("local", ""), ("box", str(packages)), ("box", str(packages))):
        began_s = time.monotonic()
        request = Request(Definition("train.py", target=target), box.path, environment=environment)
        folder, _ = submit(request, box.workspace)
        found.append(results(folder, wait(folder, box.workspace)))
        took_s = time.monotonic() - began_s
        assert len(list(folder.outputs.glob("ridge_*.pkl"))) == 20
        assert {path.stat().st_uid for path in folder.outputs.iterdir()} == {os.getuid()}
    assert len(found[0]["mse"]) == 20
    assert found[0]["alpha"] == found[1]["alpha"] == found[2]["alpha"]
    assert found[1]["mse"] == found[2]["mse"] == pytest.approx(found[0]["mse"])
    got = (folder.environment / "got.txt").read_text()
    assert "scikit-learn==" in got
    assert f"in the image {IMAGE}" in got
    assert not (folder.environment / "build.log").exists(), f"nothing is built twice ({took_s:.1f} s)"


def test_missing_part_of_a_container_target_is_named_with_the_remedy(box: Box) -> None:
    """A daemon, an image, a Python, a GPU: each before the script begins."""
    box.configure(f"engine: podman\nimage: {IMAGE}\n")
    box.configure('gpus: ["0"]\n', "local")
    folder, code, text = box.failed(gpus=1)
    assert (code, "1 GPU was asked for" in text, "nvidia-ctk" in text) == ("GpuNotFound", True, True), text
    assert not (folder.attempt(1) / "agent.json").exists()
    box.configure("engine: podman\nimage: localhost/none:1\n")
    _, code, text = box.failed(gpus=0)
    assert (code, "podman pull localhost/none:1" in text) == ("ImageNotFound", True), text
    subprocess.run(
        ["podman", "import", "-", "localhost/empty:1"], input=b"\0" * 10240, capture_output=True, check=True
    )
    box.configure("engine: podman\nimage: localhost/empty:1\n")
    _, code, text = box.failed(gpus=0)
    assert (code, "has no python3 and no python" in text) == ("EnvironmentUnusable", True), text


@pytest.mark.skipif(os.path.exists("/var/run/docker.sock"), reason="there is a docker daemon")  # noqa: PTH110
def test_without_a_daemon_there_is_docker_unavailable(box: Box) -> None:
    """The run says how it is started."""
    box.configure("engine: docker\n")
    _, code, text = box.failed()
    assert code == "DockerUnavailable", text


def test_the_shared_folder_is_kept_between_runs(box: Box, tmp_path: Path) -> None:
    """The second run of an experiment finds the first one's files."""
    box.configure(f"engine: podman\nimage: {IMAGE}\nshared_directory: {tmp_path}/share\n")
    logs = []
    for _ in range(2):
        folder, state = box.run_to_end(SHARED)
        assert state.status is Status.COMPLETED, state
        logs.append((folder.attempt(1) / "log_0.txt").read_text())
    assert logs == ["x\n", "xx\n"]


def test_more_memory_than_the_limit_is_out_of_memory(box: Box) -> None:
    """The kernel ends it, and the run says so."""
    box.configure(f"engine: podman\nimage: {IMAGE}\nmemory: 200m\n")
    before = set(Path.cwd().iterdir())
    _, code, text = box.failed("x = [bytearray(50 << 20) for _ in range(20)]\nprint(len(x))\n")
    assert code == "OutOfMemory", text
    assert set(Path.cwd().iterdir()) == before, "podman's monitor notes it where it was started"


def test_an_image_of_a_dockerfile_is_built_once(box: Box) -> None:
    """The second run finds it."""
    dockerfile = box.path / "Dockerfile"
    dockerfile.write_text(f"FROM {IMAGE}\nRUN echo made > /made\n")
    (box.path / "train.py").write_text("print(open('/made').read())")
    logs = []
    for _ in range(2):
        request = Request(Definition("train.py", target="box"), box.path, dockerfile=dockerfile)
        folder, _ = submit(request, box.workspace)
        assert wait(folder, box.workspace).status is Status.COMPLETED, folder.state()
        assert "made" in (folder.attempt(1) / "log_0.txt").read_text()
        logs.append((folder.environment / "build.log").exists())
    assert logs == [True, False]


def test_pins_that_do_not_fit_today_are_installed_as_of_their_date(box: Box) -> None:
    """Flask of 2023 cannot be imported with today's packages: it is built once more with those of then, and kept."""
    (box.path / "requirements.txt").write_text("flask==2.2.3\n")
    script = "import flask, werkzeug\nprint(flask.__version__, werkzeug.__version__)\n"
    for built in (True, False):
        folder, state = box.run_to_end(script, environment_file="requirements.txt")
        assert state.status is Status.COMPLETED, state.error
        assert (folder.attempt(1) / "log_0.txt").read_text() == "2.2.3 2.3.4\n"
        got = (folder.environment / "got.txt").read_text()
        assert "# packages as of 2023-05-16: later uploads were left out" in got
        assert (folder.environment / "build.log").exists() is built


def test_a_target_of_containers_is_created(box: Box) -> None:
    """By one command that looks at it; a script runs there, and another image that is not there is no target."""
    words = ["targets", "create", "podman"]
    assert main([*words, "made", "--image", IMAGE, "--memory", "1g"]) == 0
    _, state = box.run_to_end("print(1)\n", target="made")
    assert state.status is Status.COMPLETED, state
    assert main([*words, "other", "--image", "localhost/none:1"]) == 2
    assert not (box.workspace.targets_dir / "other.yaml").exists()


def test_a_container_outlives_its_runner(box: Box) -> None:
    """Killed by SIGKILL, the runner is followed by one that finds the container and its end."""
    folder = box.submit(
        "import os, time\nprint('up', flush=True)\n"
        "while not os.path.exists('/tmp/go'): time.sleep(0.05)\n"
        "open('outputs/x', 'w').write('1')\n"
    )
    box.wait_for_output(folder, "up")
    kill_runners(folder)
    subprocess.run(["podman", "exec", f"stoker-{folder.id}-1", "touch", "/tmp/go"], check=True)
    assert adopt(folder, box.workspace)
    state = wait(folder, box.workspace)
    assert (state.status, (folder.outputs / "x").read_text()) == (Status.COMPLETED, "1")
    listed = subprocess.run(["podman", "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    assert listed.stdout == ""


def test_a_container_that_is_killed_is_interrupted(box: Box) -> None:
    """Nobody says how the script has ended: the run does not claim that it went well."""
    folder = box.submit("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    box.wait_for_output(folder, "up")
    subprocess.run(["podman", "kill", f"stoker-{folder.id}-1"], capture_output=True, check=True)
    state = wait(folder, box.workspace)
    assert state.error is not None
    assert (state.status, state.error.code) == (Status.FAILED, "Interrupted")
