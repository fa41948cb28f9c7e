"""Child runs that a script has begun: in lists, found by their ids, with states that follow from their parents."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stoker_runs.records.conftest import MakeRun

from stoker_run.records import Recorder
from stoker_run.run import Experiment, Run, RunWorkspace
from stoker_runs.errors import SubmissionRefused, UnknownRun
from stoker_runs.launch.runners import adopt
from stoker_runs.records.children import ChildFolder, children_of, descendants_of
from stoker_runs.records.folder import RunFolder, run_files
from stoker_runs.records.index import RunIndex
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore


def script_of(folder: RunFolder, attempt: int = 1) -> Run:
    """The run as its script has it."""
    place = folder.attempt(attempt)
    place.mkdir(exist_ok=True)
    return Run(Recorder(place, folder.path, attempt), folder.id, Experiment("digits", RunWorkspace({})))


def set_state(folder: RunFolder, **facts: Any) -> None:
    """Change the state of a run as its runner would."""
    folder.write_state(folder.state().replace(**facts))


@pytest.fixture
def parent(make_run: MakeRun) -> RunFolder:
    """A run that goes on."""
    return make_run(1, status=Status.RUNNING)


@pytest.fixture
def index(store: RunStore) -> RunIndex:
    return RunIndex(store)


def test_children_are_listed_with_their_metrics_during_and_after_the_run(
    parent: RunFolder, index: RunIndex, store: RunStore
) -> None:
    """Each child is a run of the list, with its parent, its metrics, tags and state, and so are its own children."""
    script = script_of(parent)
    first, second = script.create_children(tag_key="fold", tag_values=[1, 2])
    first.log("loss", 0.5)
    first.complete()
    inner = second.child_run("inner")
    inner.log("loss", 0.25)
    inner.fail("it does not converge")
    found = {run.id: run for run in index.runs("digits", metrics=["loss"])}
    assert set(found) == {parent.id, first.id, second.id, inner.id}
    assert [found[one.id].status for one in (first, second, inner)] == ["Completed", "Running", "Failed"]
    assert [found[one.id].parent for one in (first, second, inner)] == [parent.id, parent.id, second.id]
    assert [found[one.id].metrics["loss"].last for one in (first, inner)] == [0.5, 0.25]
    assert found[first.id].tags == {"fold": "1"}
    assert found[inner.id].reason == "ScriptFailed: it does not converge"
    # A second look reads the run again, for it goes on.
    third = script.child_run()
    assert index.count() == 5
    set_state(parent, status=Status.CANCELED, ended_ms=1_700_000_000_900)
    after = {run.id: run.status for run in index.runs()}
    assert after[third.id] == after[second.id] == "Canceled"
    store.get(first.id).change_tags({"fold": "9"}, 1_800_000_000_000)
    assert {run.id: run.tags for run in index.runs()}[first.id] == {"fold": "9"}
    store.delete(parent)
    assert index.runs() == []


def test_children_are_no_runs_that_need_a_runner(parent: RunFolder, index: RunIndex, store: RunStore) -> None:
    """They are not adopted, cancelled, resumed or deleted alone; a refusal names the whole run."""
    child = store.get(script_of(parent).child_run().child_run().id)
    assert index.unfinished_runs() == [parent.id]
    assert not adopt(child, None, lambda *_: pytest.fail("a runner was started"))  # type: ignore[arg-type]
    for refused in (lambda: child.request_cancel("x", 1), child.acquire_lock):
        with pytest.raises(SubmissionRefused, match=f"child that the script of {parent.id} has begun"):
            refused()
    assert sorted(path.name for path in child.path.iterdir()) == ["child.json"]


def test_children_are_found_by_any_id(parent: RunFolder, store: RunStore) -> None:
    """By the id that follows from the parent's, by one that the script has chosen, and by references."""
    script = script_of(parent)
    numbered, named = script.child_run(), script.child_run(run_id="fold-1")
    nested = numbered.child_run()
    for one in (numbered, named, nested):
        assert store.get(one.id) == store.find(one.id)
        assert store.get(one.id).path == one.recorder.folder
    assert store.find("@latest") == parent
    assert store.find(parent.id[:8]) == parent
    for missing in (f"{parent.id}_7", "fold-2", "other_1_00000001_0"):
        with pytest.raises(UnknownRun):
            store.get(missing)


def test_files_and_properties_of_a_child_are_its_own(
    parent: RunFolder, store: RunStore, tmp_path: Path
) -> None:
    """Uploads, outputs, properties and the definition of the script that has begun it."""
    script = script_of(parent)
    child = script.child_run("named")
    (tmp_path / "a.txt").write_text("a")
    child.upload_file("a.txt", tmp_path / "a.txt")
    child.upload_file("outputs/b.txt", tmp_path / "a.txt")
    child.add_properties({"p": 1})
    folder = store.get(child.id)
    assert list(run_files(folder)) == ["a.txt", "outputs/b.txt"]
    assert folder.properties() == {"p": "1"}
    assert folder.record().definition == parent.record().definition
    assert folder.record().kind == "child"
    assert (child.display_name, next(script.get_children()).status) == ("named", "Running")
    assert [*run_files(parent)] == []


def test_a_child_of_a_lost_attempt_has_failed(parent: RunFolder) -> None:
    """One of the same id in the next attempt takes its place; an end that it was given stays."""
    first, second = script_of(parent).create_children(2)
    second.cancel()
    set_state(parent, attempt=2, attempts=2)
    states = {child.id: child.state() for child in children_of(parent)}
    assert [states[one.id].status for one in (first, second)] == ["Failed", "Canceled"]
    assert states[first.id].error is not None
    script_of(parent, 2).child_run()
    (child,) = (one for one in children_of(parent) if one.id == first.id)
    assert (child.begun_in, child.state().status) == (2, "Running")


@pytest.mark.parametrize("content", ["", "[]", '{"started_ms": "x"}', "fifo", "link"])
def test_a_folder_that_is_no_child_disturbs_nothing(
    parent: RunFolder, index: RunIndex, tmp_path: Path, content: str
) -> None:
    """A script may leave any files there: unreadable ones are left out, and no link is followed."""
    script_of(parent).child_run()
    place = parent.attempt(1) / "children" / "odd"
    if content == "link":
        (tmp_path / "child.json").write_text("{}")
        place.symlink_to(tmp_path, target_is_directory=True)
    else:
        place.mkdir()
        if content == "fifo":
            os.mkfifo(place / "child.json")
        else:
            (place / "child.json").write_text(content)
    assert f"{parent.id}_0" in {run.id for run in index.runs()}
    assert all(isinstance(child, ChildFolder) for child in descendants_of(parent))


def test_a_child_takes_no_other_runs_place(parent: RunFolder, make_run: MakeRun, index: RunIndex) -> None:
    """Also where its script gives it the id of another run."""
    other = make_run(2)
    script_of(parent).child_run(run_id=other.id)
    assert {run.id: run.parent for run in index.runs()} == {parent.id: "", other.id: ""}
    assert {run.id: run.parent for run in index.runs()} == {parent.id: "", other.id: ""}


def test_a_state_without_words_is_completed(parent: RunFolder, store: RunStore) -> None:
    """Events that a script writes by hand are read as far as they are valid."""
    child = script_of(parent).child_run()
    line = {"t": 5, "e": "status", "v": {"status": "Odd"}}
    (child.recorder.folder / "events.jsonl").write_text(json.dumps(line) + "\n")
    assert store.get(child.id).state() == RunState(
        Status.COMPLETED, since_ms=5, ended_ms=5,
        submitted_ms=(created := store.get(child.id).record().created_ms), started_ms=created,
    )  # fmt: skip
