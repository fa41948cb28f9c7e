"""The agent's start file, the variables of its script, and the zip in which it travels."""

import ast
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import vermin

import stoker_base
import stoker_run
from stoker_run import archive
from stoker_run.attempt import Refused, Start, read_start, variables
from stoker_run.ranks import collect_outputs, local_peers, rank_variables, visible_gpus, working_folder

PACKAGES = [Path(package.__file__).parent for package in (stoker_base, stoker_run)]
MODULES = sorted(module for package in PACKAGES for module in package.rglob("*.py"))
LEAST = {
    "run_id": "e_1_a",
    "experiment": "e",
    "attempt": 1,
    "command": ["python", "a.py"],
    "directory": "work",
}


def start_of(tmp_path: Path, **given: Any) -> Start:
    (tmp_path / "start.json").write_text(json.dumps({"version": 1, **LEAST, **given}))
    return read_start(tmp_path)


def test_paths_are_relative_to_the_attempt(tmp_path: Path) -> None:
    """The directory and the inputs; absolute ones stay."""
    start = start_of(tmp_path, inputs={"a": "../data", "b": "/mnt/b"})
    assert start.directory == tmp_path / "work"
    assert start.inputs == {"a": str(tmp_path / "../data"), "b": "/mnt/b"}
    assert (start.grace_s, start.world, list(start.ranks)) == (30.0, 1, [0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": 2}, "is of version 2, this agent reads 1"),
        ({"colour": "red"}, "has unknown colour"),
        ({"command": []}, "has no command"),
        ({"node": 1}, "a node that is not among its nodes"),
        ({"communicator": "smoke"}, "communicator is 'smoke'; it can be none, tensorflow, pytorch, mpi"),
        ({"parameter_servers": 1}, "leave no worker"),
        ({"nodes": 2}, "2 nodes need peers"),
        ({"peers": []}, "0 peers for 1 processes"),
    ],
)
def test_a_wrong_start_is_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    """The sentence has the reason."""
    with pytest.raises(Refused, match=words):
        start_of(tmp_path, **given)


def test_a_start_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A start that lacks required values is refused too."""
    with pytest.raises(Refused, match="there is no "):
        read_start(tmp_path)
    (tmp_path / "start.json").write_text('{"version": 1, "run_id": "a"}')
    with pytest.raises(Refused, match="misses experiment, attempt, command, directory"):
        read_start(tmp_path)


def test_the_script_finds_its_run_and_its_inputs(tmp_path: Path) -> None:
    """Variables have the names of both generations; the run's own win over the caller's and the machine's."""
    start = start_of(
        tmp_path,
        variables={"A": "1", "STOKER_RUN_ID": "other"},
        inputs={"digits": "/data/digits"},
        resume_from="/old",
        shared_directory="/share/p",
        relaxed=True,
    )
    found = variables(start, tmp_path, tmp_path / "work", {"PATH": "/bin", "PYTHONPATH": "/mine", "A": "0"})
    assert found["A"] == "1"
    assert found["PATH"] == "/bin"
    assert found["STOKER_RUN_ID"] == found["AZUREML_RUN_ID"] == found["MLFLOW_RUN_ID"] == "e_1_a"
    assert found["PYTHONPATH"] == f"{tmp_path}/agent/relaxed:{tmp_path}/agent:/mine"
    assert found["AZUREML_DATAREFERENCE_digits"] == found["digits"] == "/data/digits"
    assert found["STOKER_RESUME_FROM"] == "/old"
    assert found["AZUREML_NATIVE_SHARE_DIRECTORY"] == "/share/p/"
    assert not {"RANK", "TF_CONFIG", "WORLD_SIZE"} & found.keys()


def test_several_processes_find_each_other(tmp_path: Path) -> None:
    """TensorFlow by TF_CONFIG, with parameter servers last; the others by ranks, MPI's names besides."""
    peers = [f"host{number}:{9000 + number}" for number in range(4)]
    several = {"nodes": 2, "node": 1, "processes": 2, "peers": peers}
    start = start_of(tmp_path, communicator="tensorflow", parameter_servers=1, **several)
    config = json.loads(rank_variables(start, 3, peers)["TF_CONFIG"])
    assert config == {"cluster": {"worker": peers[:3], "ps": peers[3:]}, "task": {"type": "ps", "index": 0}}
    found = rank_variables(start_of(tmp_path, communicator="mpi", **several), 3, peers)
    names = (
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
    )
    assert [found[name] for name in names] == ["host0", "9000", "3", "4", "1", "2", "1"]
    assert [found[f"OMPI_COMM_WORLD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")] == [
        *("3", "4", "1", "2")
    ]
    assert "TF_CONFIG" not in found
    undecided = rank_variables(start_of(tmp_path, **several), 2, peers)
    assert json.loads(undecided["TF_CONFIG"])["task"] == {"type": "worker", "index": 2}
    assert (undecided["NODE_RANK"], undecided["LOCAL_RANK"]) == ("1", "0")
    assert len(set(local_peers(3))) == 3


def test_nodes_on_one_machine_have_gpus_of_their_own(tmp_path: Path) -> None:
    """Processes of a node see all of its GPUs, parameter servers none; without a setting no variable is set."""
    start = start_of(tmp_path, nodes=2, nodes_here=2, processes=2, gpus=["a", "b", "c", "d"])
    assert [visible_gpus(start, rank) for rank in start.ranks] == [
        ["a", "b"],
        ["a", "b"],
        ["c", "d"],
        ["c", "d"],
    ]
    served = start_of(tmp_path, nodes=3, nodes_here=3, parameter_servers=1, gpus=["a", "b"])
    assert [visible_gpus(served, rank) for rank in served.ranks] == [["a"], ["b"], []]
    elsewhere = start_of(tmp_path, nodes=2, node=1, processes=2, peers=[""] * 4, gpus=["a", "b"])
    assert [visible_gpus(elsewhere, rank) for rank in elsewhere.ranks] == [["a", "b"], ["a", "b"]]
    assert visible_gpus(start_of(tmp_path), 0) is None


def test_the_files_of_ranks_do_not_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each sees the snapshot and has outputs of its own, which are the run's in the end, and the next attempt's."""
    work = tmp_path / "work"
    (work / "outputs").mkdir(parents=True)
    (work / "data.csv").write_text("1")
    (work / "outputs" / "old").write_text("0")
    start = start_of(tmp_path, processes=3)
    for attempt in range(2):
        folders = [working_folder(start, tmp_path, rank) for rank in start.ranks]
        assert folders[0] == work
        assert sorted(path.name for path in (work / "outputs").iterdir()) == ["model", "old"][1 - attempt :]
        for rank, folder in enumerate(folders[:2]):
            assert (folder / "data.csv").read_text() == "1"
            with (folder / "outputs" / "model").open("a") as file:
                file.write(str(rank))
        collect_outputs(start, tmp_path)
    found = {
        path.relative_to(work).as_posix(): path.read_text() for path in work.rglob("*") if path.is_file()
    }
    assert found == {"data.csv": "1", "outputs/old": "0", "outputs/model": "00", "outputs/rank_1/model": "11"}
    assert sorted(path.name for path in work.rglob("rank_*")) == ["rank_1"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (working_folder(start, tmp_path, 1) / "outputs" / "more").write_text("1")
    (work / "outputs").rename(work / "moved")
    (work / "outputs").symlink_to(elsewhere)
    collect_outputs(start, tmp_path)
    assert "outputs of process 1 are left out: " in capsys.readouterr().err
    assert not any(elsewhere.iterdir())


def test_the_zip_is_small_and_the_same_each_time(tmp_path: Path) -> None:
    """Less than 150 kB, the faces beside the package, and Python runs it."""
    archive.write_archive(tmp_path / "one.zip")
    assert (tmp_path / "one.zip").read_bytes() == archive.archive_bytes()
    assert len(archive.archive_bytes()) < 150_000
    with zipfile.ZipFile(tmp_path / "one.zip") as found:
        names = set(found.namelist())
    assert {"__main__.py", "stoker_base/trees.py", "stoker_run/agent.py"} <= names
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "one.zip", "start", tmp_path], capture_output=True, check=False
    )
    assert (done.returncode, b"there is no" in done.stderr) == (2, True)


def test_unpacked_agent_has_the_files_of_its_archive(tmp_path: Path) -> None:
    """Unpacking writes the archive's files, without making an archive first."""
    archive.unpack(tmp_path / "agent")
    with zipfile.ZipFile(io.BytesIO(archive.archive_bytes())) as found:
        wanted = {name: found.read(name) for name in found.namelist()}
    unpacked = (path for path in (tmp_path / "agent").rglob("*") if path.is_file())
    assert {str(path.relative_to(tmp_path / "agent")): path.read_bytes() for path in unpacked} == wanted


@pytest.mark.parametrize("module", MODULES, ids=lambda module: f"{module.parent.name}/{module.name}")
def test_each_module_of_the_agent_runs_on_python_3_6(module: Path) -> None:
    """Its syntax and its use of the library are no newer."""
    text = module.read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 6))
    _two, three = vermin.detect(text)
    assert three is None or three <= (3, 6)
