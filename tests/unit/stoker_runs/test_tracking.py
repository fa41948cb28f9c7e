"""Runs from Python that need no other process."""

from pathlib import Path

import pytest

import stoker
import stoker_runs
from stoker_runs.errors import RunFailed
from stoker_runs.records.folder import RunFolder


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path / "workspace"


def test_a_program_is_a_run_of_its_own() -> None:
    """Its logs and files are the run's; the end of the block completes it."""
    with stoker_runs.start_run("notebook", tags={"a": "b"}) as run:
        run.log("loss", 0.3, step=1)
        run.log("loss", 0.2, step=2)
        run.log_list("list", [1, 2])
        run.log_row("row", x=1, y=2)
        (run.outputs / "note.txt").write_text("n")
        assert (run.status, run.metrics["loss"]) == ("Running", [0.3, 0.2])
        assert RunFolder(run.folder).has_runner()
    again = stoker_runs.get_run("@latest")
    assert (again.id, again.wait(), again.error, again.tags) == (run.id, "Completed", None, {"a": "b"})
    assert again.metrics["row"] == {"x": 1, "y": 2}
    assert again.files == ["outputs/note.txt"]
    assert [one.metrics["loss"].last for one in stoker_runs.list_runs("notebook", ["loss"])] == [0.2]


def test_a_program_that_raises_fails_its_run() -> None:
    """The error is the exception; waiting for it raises."""
    with pytest.raises(KeyError), stoker_runs.start_run("notebook"):
        raise KeyError("x")
    run = stoker_runs.get_run("@latest")
    assert run.error is not None
    assert (run.status, run.error["message"]) == ("Failed", "KeyError: 'x'")
    with pytest.raises(RunFailed, match="ScriptFailed: KeyError"):
        run.wait()
    assert run.wait(raise_on_error=False) == "Failed"


def test_the_package_has_no_other_names() -> None:
    """A misspelt name is an AttributeError as of any module."""
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        stoker.sumbit  # noqa: B018


def test_server_package_forwards_each_name_of_runs() -> None:
    """Programs of users that import the names of training from `stoker` get those of `stoker_runs`."""
    assert all(getattr(stoker, name) is getattr(stoker_runs, name) for name in stoker_runs.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'train'"):
        _ = stoker.train
