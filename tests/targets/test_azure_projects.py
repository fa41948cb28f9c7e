"""Projects of Azure's users as they are: Workbench's files and command lines, and each target of the SDK's how-to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.targets.containers import IMAGE, ready
from tests.targets.sshd import Sshd, why_not

pytestmark = pytest.mark.targets

STOKER = [sys.executable, "-m", "stoker.cli"]
SHARED = (
    Path(os.environ.get("STOKER_TEST_SHARED", Path(__file__).parents[3] / "shared")) / "azure" / "training"
)
SCRIPT = """
import os
from azureml.logging import get_azureml_logger

log = get_azureml_logger()
shared = os.environ["AZUREML_NATIVE_SHARE_DIRECTORY"]
open(shared + "seen", "a").write("x")
print("seen:", open(shared + "seen").read(), "variable:", os.environ.get("EXAMPLE_ENV_VAR"))
for step in range(5):
    log.log("Accuracy", 1 - 0.5 ** (step + 1))
open("./outputs/model.txt", "w").write("weights")
"""
CONDA = "name: project_environment\ndependencies:\n- python=3.5.2\n- pip:\n  - idna\n"
COMPUTE = """
type: "localdocker"
baseDockerImage: "{image}"
sharedVolumes: true
nvidiaDocker: {gpu}
nativeSharedDirectory: "{share}"
"""


class Workbench:
    """A project folder, and the command line of its user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "STOKER_WORKSPACE": str(folder.parent / "home")}
        self.environ.pop("STOKER_RUN_ID", None)

    def az(self, line: str, *, expect: int = 0) -> str:
        done = subprocess.run(
            [*STOKER, "az", "ml", *line.split()],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr


def test_a_workbench_project_runs_in_containers(tmp_path: Path) -> None:
    """Attach, edit, prepare, submit twice: files without a password, a shared folder, a table with Accuracy."""
    ready()
    folder = tmp_path / "project"
    config = folder / "aml_config"
    config.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (config / "conda_dependencies.yml").write_text(CONDA)
    project = Workbench(folder)
    project.az("computetarget attach localdocker --name docker --password PASSWORD")
    assert "PASSWORD" not in "".join(path.read_text() for path in config.iterdir())
    run_config = config / "docker.runconfig"
    edited = run_config.read_text().replace("PySpark", "Python")
    run_config.write_text(
        edited.replace("EnvironmentVariables: {}", "EnvironmentVariables: {EXAMPLE_ENV_VAR: Example Value}")
    )
    share = tmp_path / "share"
    (config / "docker.compute").write_text(COMPUTE.format(image=IMAGE, gpu="false", share=share))
    output = project.az("experiment prepare -c docker")
    assert "docker is prepared" in output
    assert "Python 3.5.2 is asked for" in output
    output = [project.az("experiment submit -c docker train.py") for _ in range(2)]
    assert "seen: x variable: Example Value" in output[0]
    assert "seen: xx variable: Example Value" in output[1]
    assert "building an environment" not in output[0] + output[1]
    title, *rows = project.az("history list -o table").splitlines()
    assert title.split()[-1] == "Accuracy"
    assert [row.split()[-1] for row in rows] == ["0.96875", "0.96875"]
    (tmp_path / "home" / "targets" / "local.yaml").write_text('gpus: ["0"]\n')
    (config / "docker.compute").write_text(COMPUTE.format(image=IMAGE, gpu="true", share=share))
    output = project.az("experiment submit -c docker train.py", expect=1)
    assert "GpuNotFound: 1 GPU was asked for" in output
    assert "seen:" not in output


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared has the projects of users")
def test_the_workbench_project_of_a_user_runs_here(tmp_path: Path) -> None:
    """Its files as they are; the script alone is one that needs no TensorFlow, so that it takes no minutes."""
    folder = tmp_path / "workbench"
    shutil.copytree(SHARED / "workbench", folder)
    (folder / "train.py").write_text(SCRIPT)
    project = Workbench(folder)
    project.environ["HOME"] = str(tmp_path)
    output = project.az("experiment submit -c local train.py")
    assert "seen: x variable: Example Value" in output
    assert "0.96875" in project.az("history list -o table")
    assert '"status": "Completed"' in project.az("history list")
    project.az("history download --run-id @latest -d here")
    assert (folder / "here" / "outputs" / "model.txt").read_text() == "weights"
    project.az("project restore --run-id @latest --path again")
    assert (folder / "again" / "train.py").read_text() == SCRIPT


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared has the projects of users")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("system_managed", "alpha is 0.95, and mse is"),
        ("user_managed", "alpha is 0.95, and mse is"),
        ("run_based_cluster", "alpha is 0.95, and mse is"),
        ("cluster", "alpha is 0.95, and mse is"),
        ("batch", "it is kept as a record; Azure takes it for steps of pipelines alone"),
    ],
)
def test_each_target_of_the_how_to_is_one_here(tmp_path: Path, function: str, words: str) -> None:
    """One script for all; what takes pipelines alone attaches, and says what it is for."""
    folder = tmp_path / "targets"
    shutil.copytree(SHARED / "targets", folder)
    environ = {
        **os.environ,
        "STOKER_WORKSPACE": str(tmp_path / "home"),
        "STOKER_RUN_ENVIRONMENT": "here",
    }
    done = subprocess.run(
        [sys.executable, "-m", "stoker.azure", "targets.py", function],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert words in done.stdout


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared has the projects of users")
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_virtual_machine_of_the_how_to_is_reached_by_ssh(tmp_path: Path) -> None:
    """With address and key filled in, as its user does; the machine's key is among those that are known."""
    folder = tmp_path / "targets"
    shutil.copytree(SHARED / "targets", folder)
    variables = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    server = Sshd(tmp_path / "sshd", variables=variables).start()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {server.host_key()}\n")
    text = (folder / "targets.py").read_text().replace("ssh_port=22", f"ssh_port={server.port}")
    text = text.replace("<fqdn>", "127.0.0.1").replace("<username>", "root")
    text = text.replace('password="<password>"', f'private_key_file="{server.folder / "user"}"')
    (folder / "targets.py").write_text(text)
    environ = {**os.environ, "STOKER_WORKSPACE": str(tmp_path / "home"), "HOME": str(tmp_path)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stoker.azure", "targets.py", "remote_vm"],
            cwd=folder,
            env={**environ, "STOKER_RUN_ENVIRONMENT": "here"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        server.end()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "alpha is 0.95, and mse is" in done.stdout
