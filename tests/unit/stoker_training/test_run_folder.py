"""The run folder appears whole or not at all, and never replaces files of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.errors import OperatorError
from stoker_training import run_folder
from stoker_training.run_folder import METRICS, WRITTEN_BY, check_target, check_writable, replacing


def write_run(folder, seed):
    """The least that makes a run folder."""
    (folder / METRICS).write_text(json.dumps({"written_by": WRITTEN_BY, "seed": seed}))
    (folder / "saved_model").mkdir()


def seed_of(folder):
    return json.loads((folder / METRICS).read_text())["seed"]


def crash_halfway(target, failure):
    """Begin a run folder and fail before it is complete."""
    with replacing(target) as folder:
        write_run(folder, seed=2)
        raise failure


def entries(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_run_folder_appears_with_all_parents(tmp_path):
    """Nothing is at the place before the block ends, everything is after it, and nothing lies beside it."""
    target = tmp_path / "a" / "b" / "outputs"
    with replacing(target) as folder:
        write_run(folder, seed=1)
        assert not target.exists()
    assert seed_of(target) == 1
    assert entries(target.parent) == ["outputs"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_nothing_behind(tmp_path, failure):
    """A crash or Ctrl-C during the export leaves neither a run folder nor the temporary one."""
    with pytest.raises(failure):
        crash_halfway(tmp_path / "outputs", failure)
    assert entries(tmp_path) == []


def test_an_earlier_run_is_replaced_only_when_the_new_one_is_complete(tmp_path):
    """The earlier run stays until the new one takes its place, and stays when the new one fails."""
    target = tmp_path / "outputs"
    with replacing(target) as folder:
        write_run(folder, seed=1)
    with pytest.raises(RuntimeError):
        crash_halfway(target, RuntimeError)
    assert seed_of(target) == 1
    with replacing(target) as folder:
        write_run(folder, seed=3)
        assert seed_of(target) == 1
    assert seed_of(target) == 3
    assert entries(tmp_path) == ["outputs"]


def test_an_earlier_run_comes_back_when_the_last_rename_fails(tmp_path, monkeypatch):
    """Between the two renames of a replacement an error puts the earlier run back."""
    target = tmp_path / "outputs"
    with replacing(target) as folder:
        write_run(folder, seed=1)
    rename = Path.rename

    def failing_rename(self, place):
        if ".incomplete-" in self.name:
            raise OSError("disk error")
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", failing_rename)
    with pytest.raises(OperatorError, match="could not be written: disk error"), replacing(target) as folder:
        write_run(folder, seed=2)
    assert seed_of(target) == 1
    assert entries(tmp_path) == ["outputs"]


def test_an_empty_folder_is_taken(tmp_path):
    """A folder that was made beforehand may become the run folder."""
    target = tmp_path / "outputs"
    target.mkdir()
    with replacing(target) as folder:
        write_run(folder, seed=1)
    assert seed_of(target) == 1


def test_a_symbolic_link_is_followed(tmp_path):
    """`outputs` may be a link to another disk: the link stays, its target becomes the run folder."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    with replacing(tmp_path / "outputs") as folder:
        write_run(folder, seed=1)
    assert (tmp_path / "outputs").is_symlink()
    assert seed_of(tmp_path / "disk") == 1


@pytest.mark.parametrize(
    "metrics", [None, "not json", "[]", '{"accuracy": 1}'], ids=["absent", "not JSON", "a list", "foreign"]
)
def test_a_folder_that_no_training_wrote_is_refused(tmp_path, metrics):
    """A home directory given by mistake is not deleted."""
    (tmp_path / "thesis.tex").write_text("years of work")
    if metrics is not None:
        (tmp_path / METRICS).write_text(metrics)
    with pytest.raises(OperatorError, match="neither empty nor the run folder"):
        check_target(tmp_path)


def test_a_run_folder_with_foreign_files_is_refused_by_name(tmp_path):
    """Notes that somebody laid into a run folder are not deleted with it."""
    write_run(tmp_path, seed=1)
    (tmp_path / "notes.txt").write_text("seed 1 was the good one")
    with pytest.raises(OperatorError, match=r"holds notes\.txt, which"):
        check_target(tmp_path)


def test_compiled_script_is_no_foreign_file(tmp_path):
    """A training replaces an output folder although its score.py has been imported."""
    with replacing(tmp_path / "outputs") as folder:
        write_run(folder, seed=1)
    (tmp_path / "outputs" / "__pycache__").mkdir()
    with replacing(tmp_path / "outputs") as folder:
        write_run(folder, seed=2)
    assert seed_of(tmp_path / "outputs") == 2
    assert "__pycache__" not in entries(tmp_path / "outputs")


def test_a_file_is_refused(tmp_path):
    """--output takes a folder."""
    (tmp_path / "outputs").write_text("")
    with pytest.raises(OperatorError, match="is not a folder"):
        check_target(tmp_path / "outputs")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    """Where no folder can be made none is promised; where one can be, nothing is left of the attempt."""
    with pytest.raises(OperatorError, match="the run folder /proc/stoker/outputs cannot be written"):
        check_writable(Path("/proc/stoker/outputs"))
    check_writable(tmp_path / "a" / "outputs")
    assert entries(tmp_path) == []


def test_a_mount_point_is_refused(tmp_path, monkeypatch):
    """A mounted volume cannot be renamed: the error before training says to choose a folder inside it."""
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path)
    with pytest.raises(OperatorError, match="is a mount point"):
        check_target(tmp_path)


def test_the_run_folder_has_the_usual_permissions(tmp_path):
    """Temporary folders are private; the published one follows the umask like any other new folder."""
    with replacing(tmp_path / "outputs") as folder:
        write_run(folder, seed=1)
    (tmp_path / "ordinary").mkdir()
    assert (tmp_path / "outputs").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.tensorflow
def test_the_names_of_all_artefacts_are_declared(trained):
    """A finished training writes exactly the names that the replacement of a run folder may delete."""
    result, _ = trained
    # Tests before this one may have imported its script.
    assert set(entries(result.folder)) - {"__pycache__"} == run_folder.ARTEFACTS
