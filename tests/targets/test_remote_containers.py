"""Whole runs in real containers on a machine by SSH: sshd on the loopback, and podman behind it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_server import wait_until
from tests.targets.containers import IMAGE, variables
from tests.targets.sshd import Sshd, why_not
from tests.targets.test_azure_projects import SCRIPT, Workbench
from tests.targets.test_local_runs import Project
from tests.tiny_packages import write_wheel

from stoker.settings.workspace import Workspace
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.states import Status

pytestmark = [pytest.mark.targets, pytest.mark.skipif(bool(why_not()), reason=why_not())]

WHERE = "import os, sys\nprint(os.getcwd(), sys.executable, os.path.exists('/proc/1/cgroup'))\n"
WORKBENCH = """
type: remotedocker
address: 127.0.0.1:{port}
privateKeyFile: {key}
password: AzureMlSecret=my_dsvm#my_name#0123
baseDockerImage: {image}
nvidiaDocker: {gpu}
sharedVolumes: true
nativeSharedDirectory: {share}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """A machine whose podman is that of these tests."""
    found = Sshd(tmp_path / "sshd", variables=variables()).start()
    yield found
    found.end()


class Remote(Project):
    """A project whose runs are in containers on that machine."""

    def submit(self, script: str, environment_file: str = "", **options: object) -> RunFolder:
        return super().submit(script, environment_file, **{"target": "far-box", **options})

    def log(self, folder: RunFolder) -> str:
        return (folder.attempt(1) / "log_0.txt").read_text()

    def completed(self, script: str, **options: object) -> RunFolder:
        folder, state = self.run_to_end(script, **options)
        assert state.status is Status.COMPLETED, state
        return folder

    def failed(self, script: str, **options: object) -> tuple[str, str]:
        _, state = self.run_to_end(script, **options)
        assert state.error is not None, state
        return state.error.code, f"{state.error.message}; {state.error.hint}"


@pytest.fixture
def project(tmp_path: Path, workspace: Workspace, server: Sshd) -> Remote:
    server.attach(workspace.targets_dir, "far-box", image=IMAGE, engine="podman")
    return Remote(tmp_path / "digits", workspace)


def no_container() -> bool:
    """Whether there is none: one in which packages are installed hears only afterwards that it is to end."""
    listed = subprocess.run(["podman", "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    return not listed.stdout


def test_a_script_runs_in_a_container_there(project: Remote, server: Sshd) -> None:
    """By the image's Python, with its files back, and neither container nor folder left."""
    script = WHERE + "print(open('/etc/os-release').readline())\nopen('outputs/m', 'w').write('m')\n"
    folder = project.completed(script)
    place, python, _ = project.log(folder).splitlines()[0].split()
    assert place.startswith(str(server.remote))
    assert python.startswith("/usr/bin/python3")
    assert (folder.outputs / "m").read_text() == "m"
    wait_until(no_container, "containers are removed")
    assert not (server.remote / "runs" / folder.id).exists()


def test_packages_are_installed_in_a_container_there(project: Remote, server: Sshd) -> None:
    """Once for all containers of the image; none of the machine's own is seen."""
    write_wheel(server.remote / "wheels", "tiny-one", "1.5")
    links = f"--no-index\n--find-links {server.remote / 'wheels'}\n"
    (project.path / "requirements.txt").write_text(f"{links}tiny-one==1.5\n")
    script = (
        "import importlib.util, tiny_one\nprint(tiny_one.VERSION, importlib.util.find_spec('asyncssh'))\n"
    )
    stamps = set()
    for _ in range(2):
        folder = project.completed(script, environment_file="requirements.txt")
        assert project.log(folder) == "1.5 None\n"
        assert "tiny-one==1.5" in (folder.environment / "got.txt").read_text()
        (built,) = [path for path in (server.remote / "environments").iterdir() if path.is_dir()]
        stamps.add((built / "manifest.json").stat().st_ino)
    assert len(stamps) == 1
    (project.path / "requirements.txt").write_text(f"{links}tiny-one==2.0\n")
    code, text = project.failed(script, environment_file="requirements.txt")
    assert (code, "tiny-one==2.0" in text) == ("EnvironmentUnusable", True), text
    wait_until(no_container, "containers are removed")


def test_missing_part_of_a_remote_target_is_named_with_the_remedy(project: Remote, server: Sshd) -> None:
    """The program, the image, a GPU: each before the script begins, and on which machine."""
    targets = project.workspace.targets_dir
    code, text = project.failed("print(1)\n", gpus=1)
    assert (code, "1 GPU was asked for" in text) == ("GpuNotFound", True), text
    server.attach(targets, "far-box", image="localhost/none:1", engine="podman")
    code, text = project.failed("print(1)\n")
    assert (code, "podman pull localhost/none:1" in text) == ("ImageNotFound", True), text
    server.attach(targets, "far-box", image=IMAGE, engine="docker")
    code, text = project.failed("print(1)\n")
    assert (code, f"on 127.0.0.1:{server.port}: docker" in text) == ("DockerUnavailable", True), text


def test_a_workbench_project_runs_on_a_machine_with_docker(tmp_path: Path, server: Sshd) -> None:
    """Its `remotedocker`: prepared, submitted twice with a folder that is kept there, refused without the GPU."""
    folder = tmp_path / "project"
    config = folder / "aml_config"
    config.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT.replace("get_azureml_logger()", "get_azureml_logger()\n" + WHERE))
    project = Workbench(folder)
    targets = tmp_path / "home" / "targets"
    server.attach(targets, "my_dsvm", engine="podman")
    project.az("computetarget attach remotedocker -n my_dsvm -a 127.0.0.1 -u root -w PASSWORD")
    assert "PASSWORD" not in "".join(path.read_text() for path in config.iterdir())
    (config / "my_dsvm.runconfig").write_text(
        "ArgumentVector:\n- $file\nEnvironmentVariables:\n  EXAMPLE_ENV_VAR: Example Value\n"
        '"Framework": "Python"\nPrepareEnvironment: true\nTarget: my_dsvm\n'
    )
    facts = {"port": server.port, "key": server.folder / "user", "image": IMAGE, "share": tmp_path / "share"}
    (config / "my_dsvm.compute").write_text(WORKBENCH.format(gpu="false", **facts))
    assert "my_dsvm is prepared" in project.az("experiment prepare -c my_dsvm")
    outputs = [project.az("experiment submit -c my_dsvm train.py") for _ in range(2)]
    assert "seen: x variable: Example Value" in outputs[0]
    assert "seen: xx variable: Example Value" in outputs[1]
    assert f"{server.remote}/runs/" in outputs[1]
    (config / "my_dsvm.compute").write_text(WORKBENCH.format(gpu="true", **facts))
    refused = project.az("experiment submit -c my_dsvm train.py", expect=2)
    assert "1 GPU asked for, and this target has 0" in refused
    assert "seen:" not in refused
    assert "0.96875" in project.az("history list -o table")
