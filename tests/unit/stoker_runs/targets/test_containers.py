"""The engine of containers against a `docker` that is a shell script: its commands and their answers."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.snapshots import SnapshotStore
from stoker_runs.records.states import RunFailure, RunState
from stoker_runs.records.store import RunStore
from stoker_runs.targets import container
from stoker_runs.targets.container import ContainerEngine
from stoker_runs.targets.container_program import ContainerProgram, mount
from stoker_runs.targets.containers import FailedPulls, Image
from stoker_runs.targets.definitions import DEFAULT_IMAGE, DOCKER, ContainerSettings, Target, find_target
from stoker_runs.targets.engine import EngineFailure, Job, Presence

# Each answer is a file named after the command's first word, run by the shell.
FAKE = """#!/bin/sh
here=$(dirname "$0")
printf '%s\\n' "$*" >> "$here/asked"
case "$1" in
    --version) echo "Docker version 28.0.0" ;;
    *) . "$here/$1" ;;
esac
"""
LOOK = '[[3, 11, 2], "/usr/bin/python3", [], {"numpy": "2.0.0"}]'


class Docker:
    """A folder on the PATH with a `docker` whose answers can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "docker"
        program.write_text(FAKE)
        program.chmod(stat.S_IRWXU)
        self.answers(
            info="echo '28.0.0 [\"name=seccomp\"]'",
            image="echo sha256:abc",
            run=f"echo '{LOOK}'",
            container="echo 'Error: No such container: x' >&2; exit 1",
            rm="exit 0",
            logs="exit 0",
            start="exit 0",
        )

    def answers(self, **scripts: str) -> None:
        for command, script in scripts.items():
            (self.folder / command).write_text(script + "\n")

    @property
    def commands(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    made = Docker(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    monkeypatch.setenv("STOKER_CONTAINER_ENGINE", "docker")
    # To pack the agent takes longer than all the rest.
    monkeypatch.setattr(container, "write_archive", lambda path: path.touch())
    return made


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "digits" / ".stoker").create()


Jobs = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path, workspace: Workspace) -> Jobs:
    def made(**options: Any) -> Job:
        source = tmp_path / "source"
        source.mkdir()
        (source / "train.py").write_text("print(1)")
        digest = SnapshotStore(workspace.snapshots_dir).take(source).digest
        definition = Definition("train.py", variables={"TOKEN": "hidden"}, **options)
        record = RunRecord("e_1_0a1b2c3d", "e", 1, definition, snapshot=digest)
        folder = RunStore(workspace.runs_dir).create(record, RunState())
        return Job(folder, record, 1, workspace.snapshots_dir)

    return made


def engine(workspace: Workspace, **settings: Any) -> ContainerEngine:
    return ContainerEngine(Target("box", DOCKER, {"image": "lab/train:1", **settings}), workspace)


def refusal(act: Callable[[], object]) -> RunFailure:
    with pytest.raises(EngineFailure) as caught:
        act()
    return caught.value.failure


def test_an_attempt_is_one_container_with_the_folder_of_the_attempt(
    docker: Docker, workspace: Workspace, job: Jobs
) -> None:
    """The command line has folders, limits and the user's number, and no variable of the script."""
    one = job(container={"shm_size": "1g", "arguments": ["--cpus", "2"]})
    made = engine(workspace, memory="4g", shared_directory=str(workspace.root / "share"))
    made.prepare(one, lambda _: None)
    made.start(one)
    line = docker.commands[-1]
    assert line.startswith("run --detach --name stoker-e_1_0a1b2c3d-1 ")
    assert f"--mount type=bind,source={one.place},target=/stoker/attempt " in line
    assert f"source={workspace.root}/share/local/digits/e,target=/stoker/share " in line
    assert "--shm-size 1g --memory 4g --memory-swap 4g" in line
    assert line.endswith(
        "--cpus 2 --entrypoint /usr/bin/python3 sha256:abc /stoker/attempt/stoker_run.zip start /stoker/attempt"
    )
    assert "hidden" not in "".join(docker.commands)
    assert ("--user" in line) == (os.geteuid() != 0)
    start = json.loads((one.place / "start.json").read_text())
    assert start["command"] == ["/usr/bin/python3", "train.py"]
    assert (start["directory"], start["shared_directory"]) == ("/stoker/attempt/work", "/stoker/share")
    assert "numpy==2.0.0" in (one.folder.environment / "got.txt").read_text()


def test_a_run_goes_on_from_the_outputs_that_its_container_sees(
    docker: Docker, workspace: Workspace, job: Jobs, tmp_path: Path
) -> None:
    """Those of another run are bound where nobody can write to them."""
    one = replace(job(resume_from="e_1_00000000"), resume_from=tmp_path / "old")
    engine(workspace).prepare(one, lambda _: None)
    engine(workspace).start(one)
    assert f"source={tmp_path / 'old'},target=/stoker/resume_from,readonly" in docker.commands[-1]
    start = json.loads((one.place / "start.json").read_text())
    assert start["command"][-2:] == ["--resume-from", "/stoker/resume_from"]


@pytest.mark.parametrize(
    ("answers", "code", "words", "hint"),
    [
        (
            {"info": "echo 'Cannot connect to the Docker daemon at unix:///x.' >&2; exit 1"},
            "DockerUnavailable",
            "Cannot connect to the Docker daemon",
            "systemctl start docker",
        ),
        (
            {"info": "echo 'permission denied while trying to connect' >&2; exit 1"},
            "DockerUnavailable",
            "permission denied",
            "usermod -aG docker",
        ),
        (
            {"image": "exit 1", "pull": "echo 'manifest for x not found' >&2; exit 1"},
            "ImageNotFound",
            "the image lab/train:1 is not here and cannot be pulled: manifest for x not found",
            "docker pull lab/train:1",
        ),
        (
            {"run": "exit 127"},
            "EnvironmentUnusable",
            "the image lab/train:1 has no python3 and no python",
            "name an image that has it",
        ),
        (
            {"run": "echo '[[3, 5, 2], \"/usr/bin/python3\", [], {}]'"},
            "EnvironmentUnusable",
            "has Python 3.5.2 alone, and scripts need Python 3.6 or newer",
            "name an image",
        ),
        (
            {"run": "echo 'runtime error: disk full' >&2; exit 125"},
            "TargetUnusable",
            "cannot be started: runtime error: disk full",
            "",
        ),
    ],
)
def test_missing_daemon_image_or_python_is_named_with_the_remedy(
    docker: Docker, workspace: Workspace, job: Jobs, answers: dict[str, str], code: str, words: str, hint: str
) -> None:
    """A missing daemon, image or Python has its code, its words and the next step."""
    docker.answers(**answers)
    one = job()
    failure = refusal(lambda: engine(workspace).prepare(one, lambda _: None))
    assert (failure.code, words in failure.message, hint in failure.hint) == (code, True, True), failure
    assert not (one.place / "start.json").exists()


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (f"echo '{LOOK}'", "1 GPU was asked for in the container of lab/train:1: it sees none"),
        ("echo 'could not select device driver \"\" with capabilities' >&2; exit 125", "device driver"),
    ],
)
def test_gpus_are_looked_for_before_the_script_is_started(
    docker: Docker, workspace: Workspace, job: Jobs, run: str, why: str
) -> None:
    """Where a container sees none the run fails with the reason, and has not begun."""
    docker.answers(run=run)
    failure = refusal(lambda: engine(workspace).prepare(job(gpus=1), lambda _: None))
    assert (failure.code, why in failure.message) == ("GpuNotFound", True), failure
    assert "nvidia-ctk" in failure.hint
    assert any(" --gpus all " in line for line in docker.commands)
    assert "--detach" not in "".join(docker.commands)


def test_a_framework_that_will_use_no_gpu_is_reported_before_the_start(
    docker: Docker, workspace: Workspace, job: Jobs
) -> None:
    """The image's packages and libraries show it; frameworks with cuDNN give no line."""
    look = '[[3, 11, 2], "/usr/bin/python3", ["GPU 0"], {"tensorflow": "2.21.0"}]'
    for libraries, words in (
        ("libc.so.6", "neither its packages nor the machine have"),
        ("libcudnn.so.9", ""),
    ):
        docker.answers(run=f"case \"$*\" in *ldconfig*) echo {libraries} ;; *) echo '{look}' ;; esac")
        notes: list[str] = []
        one = job(gpus=1)
        engine(workspace).prepare(one, notes.append)
        assert len(notes) == bool(words)
        assert words in "".join(notes)
        shutil.rmtree(one.folder.path)
        shutil.rmtree(workspace.root.parent.parent / "source")


def test_an_unavailable_image_is_replaced_by_that_of_the_target(
    docker: Docker, workspace: Workspace, job: Jobs
) -> None:
    """A line says so, for images of 2017 are nowhere any more."""
    docker.answers(
        image='case "$*" in *mmlspark*) exit 1;; esac; echo sha256:abc', pull="echo gone >&2; exit 1"
    )
    notes: list[str] = []
    engine(workspace).prepare(job(container={"image": "microsoft/mmlspark:plus-0.9.9"}), notes.append)
    assert notes[-1] == "the image microsoft/mmlspark:plus-0.9.9 cannot be had (gone): lab/train:1 is used"


@pytest.mark.parametrize(
    ("state", "agent", "presence"),
    [
        ("echo 'Error: No such container: x' >&2; exit 1", False, Presence.ABSENT),
        ("echo 'Error: No such container: x' >&2; exit 1", True, Presence.GONE),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", True, Presence.UNREACHABLE),
        ("echo 'created 0 false'", False, Presence.ABSENT),
        ("echo 'running 0 false'", False, Presence.ALIVE),
        ("echo 'exited 137 false'", True, Presence.GONE),
        ("echo 'exited 137 true'", True, Presence.ENDED),
        ("echo 'exited 2 false'", False, Presence.ENDED),
    ],
)
def test_a_container_without_a_word_of_its_agent(
    docker: Docker, workspace: Workspace, job: Jobs, state: str, agent: bool, presence: Presence
) -> None:
    """The engine asks for its state only then, and never takes that for success."""
    one = job()
    engine(workspace).prepare(one, lambda _: None)
    docker.answers(container=state, logs="echo 'stoker_run: no start.json' >&2")
    if agent:
        (one.place / "agent.json").write_text("{}")
    sight = engine(workspace).observe(one)
    assert sight.presence is presence
    if presence is Presence.ENDED:
        expected = {"outcome": "signalled", "out_of_memory": True} if agent else {"outcome": "not_started"}
        assert expected.items() <= dict(sight.exit).items()


def test_a_container_that_is_there_is_not_made_twice(docker: Docker, workspace: Workspace, job: Jobs) -> None:
    """One that a killed runner has made is started; one that runs is left alone."""
    one = job()
    engine(workspace).prepare(one, lambda _: None)
    taken = "echo 'Conflict. The container name is already in use' >&2; exit 125"
    docker.answers(run=taken, container="echo 'running 0 false'")
    engine(workspace).start(one)
    assert docker.commands[-1].startswith("container inspect")
    docker.answers(container="echo 'created 0 false'")
    engine(workspace).start(one)
    assert docker.commands[-1] == "start stoker-e_1_0a1b2c3d-1"
    engine(workspace).clean(one)
    assert docker.commands[-1] == "rm --force --volumes stoker-e_1_0a1b2c3d-1"
    assert not (one.place / "work").exists()


def test_docker_and_podman_request_gpus_in_their_own_way() -> None:
    """By --gpus for Docker, and as a device for Podman."""
    assert ContainerProgram("docker", "docker").gpus() == ["--gpus", "all"]
    assert ContainerProgram("podman", "podman").gpus() == ["--device", "nvidia.com/gpu=all"]


def test_an_image_that_is_nowhere_is_not_pulled_for_each_run(
    docker: Docker, workspace: Workspace, job: Jobs, tmp_path: Path
) -> None:
    """For an hour the other one is used at once; an image that is there by then is taken, and a check tries anew."""
    docker.answers(image='case "$*" in *old*) exit 1;; esac; echo sha256:abc', pull="echo gone >&2; exit 1")
    settings = ContainerSettings("lab/old:1", "lab/train:1")
    program = ContainerProgram.find()
    clock = [1000.0]
    failed = FailedPulls(tmp_path / "kept", "far", lambda: clock[0])

    def lines(known: FailedPulls | None = failed) -> list[str]:
        notes: list[str] = []
        assert Image.obtain(program, settings, tmp_path, notes.append, known).name == "lab/train:1"
        return notes

    assert lines()[0] == "pulling the image lab/old:1"
    assert lines() == [
        "the image lab/old:1 cannot be had (gone, as was said within the last hour): lab/train:1 is used"
    ]
    assert sum(line.startswith("pull ") for line in docker.commands) == 1
    assert lines(None)[0] == "pulling the image lab/old:1"
    assert lines(FailedPulls(tmp_path / "kept", "near", lambda: clock[0]))[0] == "pulling the image lab/old:1"
    clock[0] += 3600
    assert lines()[0] == "pulling the image lab/old:1"
    docker.answers(image="echo sha256:abc")
    assert Image.obtain(program, settings, tmp_path, lambda _: None, failed).name == "lab/old:1"


@pytest.mark.parametrize(
    ("kind", "rootless", "user"),
    [
        ("docker", False, ["--user", "1000:100"]),
        ("docker", True, []),
        ("podman", False, ["--user", "1000:100"]),
        ("podman", True, ["--userns", "keep-id", "--user", "1000:100"]),
    ],
)
def test_files_belong_to_the_user(
    monkeypatch: pytest.MonkeyPatch, kind: str, rootless: bool, user: list[str]
) -> None:
    """The number inside is the one that becomes the user's outside."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    assert ContainerProgram(kind, kind, rootless=rootless).user() == user


@pytest.mark.parametrize(
    ("name", "pulled"),
    [
        ("python:3.11", "docker.io/library/python:3.11"),
        ("org/image", "docker.io/org/image"),
        ("localhost/image", "localhost/image"),
        ("registry:5000/image", "registry:5000/image"),
        ("ghcr.io/org/image", "ghcr.io/org/image"),
    ],
)
def test_podman_pulls_from_dockers_registry_where_the_name_has_none(
    docker: Docker, tmp_path: Path, name: str, pulled: str
) -> None:
    """As docker does by itself."""
    docker.answers(image="exit 1", pull="exit 1")
    podman = ContainerProgram(str(docker.folder / "docker"), "podman")
    with pytest.raises(EngineFailure):
        Image.obtain(podman, ContainerSettings(name), tmp_path, lambda _: None)
    assert f"pull {pulled}" in docker.commands


def test_a_mount_takes_each_name() -> None:
    """A comma is one of the name's own letters."""
    assert mount(Path('/a,b"'), "/x", readonly=True)[1] == 'type=bind,"source=/a,b""",target=/x,readonly'


def test_a_target_of_containers_shares_the_machine(tmp_path: Path) -> None:
    """Its cores and GPUs are those of local, whose file limits both."""
    (tmp_path / "local.yaml").write_text('cores: 3\ngpus: ["0"]\n')
    (tmp_path / "box.yaml").write_text("type: docker\nimage: lab/train:1\nmemory: 8g\n")
    target = find_target(tmp_path, "box")
    assert (target.pool, target.capacity) == ("local", find_target(tmp_path, "local").capacity)
    assert ContainerSettings.of(target.settings, {}).fallback == "lab/train:1"
    assert ContainerSettings.of({}, {}).fallback == DEFAULT_IMAGE


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memory: lots", "memory must be a size"),
        ("engine: lxc", "engine must be docker or podman"),
        ("images: x", "did you mean image"),
        ("volumes: [data]", "must be a list of /HERE:/THERE"),
        ("shared_directory: here", "must be an absolute path"),
        ("image: --privileged", "must be the name of an image"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, line: str, words: str) -> None:
    """Before anything is submitted."""
    (tmp_path / "box.yaml").write_text(f"type: docker\n{line}\n")
    with pytest.raises(InvalidSettings, match=words):
        find_target(tmp_path, "box")
