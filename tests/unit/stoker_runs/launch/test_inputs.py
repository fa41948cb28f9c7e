"""Data of runs: what people name becomes a path, a digest, and an argument of the script."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.web import Web

from stoker.errors import InvalidSettings, OperatorError
from stoker.settings.workspace import Workspace
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.inputs import check_inputs, find_input, split_named
from stoker_runs.records.snapshots import data_digests
from stoker_runs.targets.definitions import Target


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A workspace with two stores, and a data set of two versions."""
    workspace = Workspace(tmp_path / "workspace").create()
    elsewhere = tmp_path / "elsewhere"
    for folder in (workspace.root / "stores" / "workspaceblobstore" / "mnist", elsewhere / "new"):
        folder.mkdir(parents=True)
    store = workspace.root / "stores" / "disk"
    store.mkdir()
    (store / "store.json").write_text(json.dumps({"folder": str(elsewhere)}))
    sets = workspace.azure_dir / "datasets"
    sets.mkdir(parents=True)
    versions = [
        {"places": [["workspaceblobstore", "/mnist"]]},
        {"places": [["disk", "new/*.gz"]]},
        {"places": [["disk", "a"], ["disk", "b"]]},
    ]
    (sets / "digits.json").write_text(json.dumps(versions))
    return workspace


def test_an_input_is_a_path_a_data_set_or_a_path_in_a_store(workspace: Workspace, tmp_path: Path) -> None:
    """A path before a data set before a path in a store; a mode behind it changes nothing."""
    (tmp_path / "data").mkdir()
    root, disk = workspace.root / "stores" / "workspaceblobstore", tmp_path / "elsewhere"

    def found(where: str) -> str:
        return find_input("x", where, workspace, tmp_path)

    assert found("data") == found("data:download") == str(tmp_path / "data")
    assert found("digits:1") == found("workspaceblobstore/mnist:mount") == str(root / "mnist")
    assert found("digits:2") == found("disk/new") == str(disk / "new")
    assert found("disk") == str(disk)


@pytest.mark.parametrize(
    ("name", "where", "error", "words"),
    [
        ("x", "digit", SubmissionRefused, "did you mean digits"),
        ("x", "digits:9", SubmissionRefused, "no version 9; it has 1 to 3"),
        ("x", "digits:latest", SubmissionRefused, "of 2 folders"),
        ("x", "disk/none", SubmissionRefused, "upload the data first"),
        ("x", "disk/../../etc", SubmissionRefused, "is no file, folder, data set"),
        ("1=", "digits", InvalidSettings, "cannot be the name of an input"),
    ],
)
def test_missing_input_is_refused(
    workspace: Workspace, tmp_path: Path, name: str, where: str, error: type[Exception], words: str
) -> None:
    """The error has the nearest name, or the step to take first."""
    with pytest.raises(error, match=words):
        find_input(name, where, workspace, tmp_path)


def test_invalid_data_is_refused_before_a_run_is_written(tmp_path: Path) -> None:
    """That it is there, that the target can read it, and that the option has the form of one."""
    with pytest.raises(SubmissionRefused, match="there is nothing in"):
        check_inputs({"x": str(tmp_path / "none")}, Target("local"), Workspace(tmp_path))
    with pytest.raises(SubmissionRefused, match="far gets no files of this machine"):
        check_inputs({"x": str(tmp_path)}, Target("far", "elsewhere"), Workspace(tmp_path))
    with pytest.raises(InvalidSettings, match="expected NAME=PATH"):
        split_named("--input", "digits")


def test_a_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    """A copy has the same one; another content or name has not, and a file that was read is not read again."""
    kept = tmp_path / "kept" / "seen.json"
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "a.txt").write_text("a")
        os.utime(folder / "sub" / "a.txt", (1_000_000_000, 1_000_000_000))
    first = data_digests({"x": str(one), "y": str(two)}, kept)
    assert first["x"] == first["y"]
    (two / "sub" / "a.txt").write_text("b")
    assert data_digests({"x": str(two)}, kept)["x"] != first["x"]
    (one / "sub" / "a.txt").rename(one / "sub" / "b.txt")
    assert data_digests({"x": str(one)}, kept)["x"] != first["x"]
    assert data_digests({}, kept) == {}
    with pytest.raises(SubmissionRefused, match="cannot be read"):
        data_digests({"x": str(tmp_path / "none")}, kept)


def test_a_file_of_the_web_is_fetched_once_until_it_changes(
    workspace: Workspace, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked about each time; a server that is gone leaves the file of the last time; queries are in no output."""
    notes: list[str] = []
    address = f"http://{web.place}/data/digits.gz?sig=secret"

    def fetch() -> bytes:
        return Path(find_input("x", address, workspace, say=notes.append)).read_bytes()

    assert (fetch(), fetch(), web.fetched) == (b"one", b"one", 1)
    assert notes == [f"fetching 1 file (0.0 MB) of http://{web.place}/data/digits.gz"]
    web.content = b"two"
    assert fetch() == b"two"
    assert "digits.gz of http://127.0.0.1" in notes[-1]
    assert "changed since the last time: sha256" in notes[-1]
    web.stop()
    assert fetch() == b"two"
    assert "the files of the last time are used" in caplog.text
    with pytest.raises(OperatorError, match="/other"):
        find_input("x", f"http://{web.place}/other?sig=secret", workspace, say=notes.append)
    assert "secret" not in caplog.text + "".join(notes)


def test_a_data_set_of_the_web_is_a_file_or_a_folder(workspace: Workspace, web: Web) -> None:
    """One address is its file; several are a folder with hosts and paths, whose files are those of today."""
    other = web.place.replace("127.0.0.1", "localhost")
    addresses = [f"http://{web.place}/mnist/images.gz", f"http://{other}/mnist/labels.gz"]
    versions = [
        {"places": [[None, addresses[0]]]},
        {"places": [[None, address] for address in addresses]},
        {"places": [[None, addresses[0]], ["disk", "new"]]},
        {"places": [[None, f"http://{web.place}/x.gz?{number}"] for number in (1, 2)]},
    ]
    (workspace.azure_dir / "datasets" / "mnist dataset.json").write_text(json.dumps(versions))

    def found(version: int) -> Path:
        return Path(find_input("x", f"mnist dataset:{version}", workspace))

    assert found(1).read_bytes() == b"one"
    folder = found(2)
    web.content = b"two"
    assert found(2) == folder
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        f"{place.replace(':', '-')}/mnist/{name}.gz"
        for place, name in ((web.place, "images"), (other, "labels"))
    }
    assert all(path.read_bytes() == b"two" for path in folder.rglob("*.gz"))
    with pytest.raises(SubmissionRefused, match="is of 2 folders"):
        found(3)
    with pytest.raises(SubmissionRefused, match="would be one file of a folder"):
        found(4)
