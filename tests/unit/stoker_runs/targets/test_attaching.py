"""Attaching and detaching compute targets: files, secrets, refusals."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from stoker.cli import main
from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.submission import Request, plan
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunState
from stoker_runs.records.store import RunStore
from stoker_runs.targets.attaching import attach, detach
from stoker_runs.targets.definitions import Target, find_target
from stoker_runs.targets.engine import EngineFailure

VM = {"type": "ssh", "address": "gpu.example.com"}


class Puppet:
    """An engine of a machine with four cores, or of one that is not there."""

    def __init__(self, target: Target, workspace: Workspace) -> None:
        self._target = target

    def check(self) -> list[str]:
        if self._target.settings["address"] == "gone":
            raise EngineFailure("gone cannot be reached")
        return ["Python 3.6.15 on gpu"]

    def discover_settings(self) -> Mapping[str, Any]:
        return {"cores": 4, "gpus": ["0"]}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    return Workspace(tmp_path / "workspace")


def test_capacity_of_an_attached_machine_is_kept(workspace: Workspace) -> None:
    """Cores and GPUs become the capacity; secrets are readable by their owner alone."""
    lines = attach(workspace, "vm", VM, {"password": "hunter2"}, Puppet)  # type: ignore[arg-type]
    assert lines == ["Python 3.6.15 on gpu"]
    capacity = find_target(workspace.targets_dir, "vm").capacity
    assert capacity is not None
    assert (capacity.cores, capacity.gpus) == (4, ("0",))
    secret = workspace.targets_dir / "vm.secret"
    assert json.loads(secret.read_text()) == {"password": "hunter2"}
    assert secret.stat().st_mode & 0o077 == 0
    assert "hunter2" not in (workspace.targets_dir / "vm.yaml").read_text()


def test_unusable_machine_leaves_the_targets_unchanged(workspace: Workspace) -> None:
    """An earlier target keeps its settings and secret; a new one leaves no file."""
    attach(workspace, "vm", VM, {"password": "hunter2"}, None)
    before = {path.name: path.read_bytes() for path in workspace.targets_dir.iterdir()}
    for name in ("vm", "other"):
        with pytest.raises(EngineFailure, match="cannot be reached"):
            attach(workspace, name, {**VM, "address": "gone"}, {"password": "new"}, Puppet)  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in workspace.targets_dir.iterdir()} == before


def test_a_secret_stays_where_one_gets_in_as_before(workspace: Workspace) -> None:
    """Another host key asks for no new password; another address does."""
    secret = workspace.targets_dir / "vm.secret"
    attach(workspace, "vm", VM, {"password": "hunter2"}, None)
    attach(workspace, "vm", {**VM, "host_key": "SHA256:abc"}, {}, None)
    assert secret.exists()
    attach(workspace, "vm", {**VM, "address": "other.example.com"}, {}, None)
    assert not secret.exists()


def test_settings_of_the_same_machine_are_kept_when_attached_again(workspace: Workspace) -> None:
    """Containers, image and host key of the same machine are kept; another machine begins anew."""
    settings = {**VM, "containers": True, "image": "lab/train:1", "folder": "/runs", "host_key": "SHA256:abc"}
    attach(workspace, "vm", settings, {}, None)
    attach(workspace, "vm", {"type": "ssh", "host_key": "SHA256:def"}, {}, None)
    target = find_target(workspace.targets_dir, "vm")
    assert {"type": target.type, **target.settings} == {**settings, "host_key": "SHA256:def"}
    assert target.has_containers
    attach(workspace, "vm", {**VM, "address": "other.example.com"}, {}, None)
    assert find_target(workspace.targets_dir, "vm").settings == {"address": "other.example.com"}


def test_a_target_with_a_run_is_not_detached(workspace: Workspace) -> None:
    """The run is named; without it both files go."""
    attach(workspace, "vm", VM, {"password": "hunter2"}, None)
    store = RunStore(workspace.runs_dir)
    record = RunRecord("e_1_0000000a", "e", 1000, Definition("a.py", target="vm"))
    folder = store.create(record, RunState())
    with pytest.raises(SubmissionRefused, match="e_1_0000000a is on vm"):
        detach(workspace, "vm")
    store.delete(folder)
    detach(workspace, "vm")
    assert list(workspace.targets_dir.iterdir()) == []
    with pytest.raises(InvalidSettings, match="there is no compute target 'vm'"):
        detach(workspace, "vm")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["vm", "--address", "x", "--port", "many"], "port must be a whole number, got 'many'"),
        (["local", "--address", "x"], "local is this machine"),
        (["v/m", "--address", "x"], "cannot be a compute target name"),
        (["vm", "--address", "x", "--password-file", "/no/such/file"], "the password cannot be read"),
        (
            ["vm", "--address", "x", "--cores", "0"],
            "cores must be a whole number between 1 and 1000000, got '0'",
        ),
    ],
)
def test_invalid_target_is_not_attached(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """The command ends with status 2 and one sentence, and writes nothing."""
    assert main(["targets", "attach", "ssh", *words, "--no-check"]) == 2
    assert complaint in capsys.readouterr().err
    assert not workspace.targets_dir.is_dir() or list(workspace.targets_dir.iterdir()) == []


def test_options_become_the_file(workspace: Workspace, tmp_path: Path) -> None:
    """Numbers, lists and texts; a key's path is absolute, and a secret's first line is the secret."""
    (tmp_path / "given").write_text("open sesame\nnot this\n")
    words = ["--address", "x", "--port", "2222", "--gpus", "0, 1", "--cores", "2", "--key-file", "id"]
    words += ["--passphrase-file", str(tmp_path / "given"), "--no-check"]
    assert main(["targets", "attach", "ssh", "vm", *words]) == 0
    found = find_target(workspace.targets_dir, "vm")
    assert found.settings == {
        "address": "x",
        "port": 2222,
        "gpus": ["0", "1"],
        "cores": 2,
        "key_file": str(Path("id").absolute()),
    }
    assert json.loads((workspace.targets_dir / "vm.secret").read_text()) == {"passphrase": "open sesame"}


@pytest.mark.parametrize(
    ("words", "content"),
    [
        (["local", "--cores", "1", "--gpus", "0"], {"cores": 1, "gpus": ["0"]}),
        (
            ["docker", "box", "--image", "python:3.11", "--volumes", "/a:/b,/c:/d:ro"],
            {"type": "docker", "engine": "docker", "image": "python:3.11", "volumes": ["/a:/b", "/c:/d:ro"]},
        ),
        (["podman", "box", "--memory", "8g"], {"type": "docker", "engine": "podman", "memory": "8g"}),
        (
            ["ssh", "vm", "--address", "x", "--containers", "true"],
            {"type": "ssh", "address": "x", "containers": True},
        ),
        (["amlcompute", "c", "--max-nodes", "2"], {"type": "amlcompute", "max_nodes": 2}),
    ],
)
def test_each_type_is_created_once(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], words: list[str], content: Mapping[str, Any]
) -> None:
    """Its file has the options; a line names the next step, and a second target of the name is refused."""
    name = words[1] if words[0] != "local" else "local"
    file = workspace.targets_dir / f"{name}.yaml"
    assert main(["targets", "create", *words, "--no-check"]) == 0
    assert yaml.safe_load(file.read_text()) == content
    assert f"stoker submit --target {name} SCRIPT" in capsys.readouterr().out
    before = file.read_bytes()
    assert main(["targets", "create", *words, "--no-check"]) == 2
    assert f"there is a compute target '{name}' already, {file}" in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["podman", "box", "--memory", "1q"], "memory must be a size"),
        (
            ["amlcompute", "c", "--max-nodes", "2", "--min-nodes", "3"],
            "max_nodes is 2, less than min_nodes, 3",
        ),
        (
            ["amlcompute", "c", "--max-nodes", "0"],
            "max_nodes must be a whole number between 1 and 1000000, got '0'",
        ),
        (["ssh", "v/m", "--address", "x"], "cannot be a compute target name"),
        (["docker", "local"], "local is this machine"),
    ],
)
def test_invalid_target_is_not_created(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """The command ends with status 2 and one sentence, and writes nothing."""
    assert main(["targets", "create", *words, "--no-check"]) == 2
    assert complaint in capsys.readouterr().err
    assert not list(workspace.targets_dir.glob("*"))


def test_created_target_is_checked(workspace: Workspace) -> None:
    """A target that cannot be used leaves no file."""
    with pytest.raises(EngineFailure, match="cannot be reached"):
        attach(workspace, "vm", {**VM, "address": "gone"}, {}, Puppet, is_new=True)  # type: ignore[arg-type]
    assert list(workspace.targets_dir.iterdir()) == []
    assert attach(workspace, "vm", VM, {}, Puppet, is_new=True) == ["Python 3.6.15 on gpu"]  # type: ignore[arg-type]


def test_this_machine_stands_for_a_cluster(workspace: Workspace, tmp_path: Path) -> None:
    """Its runs share the slots of the machine's other runs, and have no more nodes than it has."""
    attach(workspace, "local", {"cores": 3, "gpus": ["7"]}, {}, None, is_new=True)
    attach(workspace, "c", {"type": "amlcompute", "max_nodes": 2}, {}, None, is_new=True)
    cluster = find_target(workspace.targets_dir, "c")
    assert (cluster.pool, cluster.capacity) == ("local", find_target(workspace.targets_dir, "local").capacity)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").touch()
    request = Request(Definition("a.py", target="c", nodes=2), tmp_path / "project")
    assert plan(request, workspace).target == cluster
    with pytest.raises(SubmissionRefused, match="3 nodes were asked for, and c has 2"):
        plan(replace(request, definition=request.definition.replace(nodes=3)), workspace)
