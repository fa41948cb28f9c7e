"""Runs on disk: created whole, found by what people type, changed by lines."""

import os
from pathlib import Path

import pytest
from tests.unit.stoker_runs.records.conftest import MakeRun

from stoker.errors import InvalidSettings
from stoker_runs.errors import UnknownRun
from stoker_runs.records.record import RunRecord, checked_experiment, experiment_of, new_run_id
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore


def test_a_run_reads_back_its_record_and_state(store: RunStore, make_run: MakeRun) -> None:
    """Record and state are those with which it was created, and nothing is left of the making."""
    folder = make_run(arguments=("--lr", "0.1"))
    assert folder.record().definition.arguments == ("--lr", "0.1")
    assert RunRecord.from_json(folder.record().to_json()) == folder.record()
    assert folder.state().status is Status.COMPLETED
    assert list((store.runs_dir / ".staging").iterdir()) == []


def test_a_run_is_found_by_its_id_the_start_of_it_or_its_age(store: RunStore, make_run: MakeRun) -> None:
    """An id, a beginning that is one run's alone, the last one, the one before it."""
    one, two, other = make_run(1), make_run(2), make_run(3, experiment="waste")
    assert store.find(one.id) == store.get(one.id) == one
    assert store.find("waste") == store.find("@latest") == other
    assert store.find("@-2") == two
    assert store.find("@-3") == one


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("digits", "any of 2 runs"),
        ("digits_1700000000_00000009", "the nearest is digits_1700000000_0000000"),
        ("", "no run ''"),
        ("@-3", "the workspace has 2 runs"),
        ("../digits", "no run"),
    ],
)
def test_unknown_reference_is_refused_with_near_ones(
    store: RunStore, make_run: MakeRun, reference: str, reason: str
) -> None:
    """The error names similar runs, for ambiguous and unknown references."""
    make_run(1), make_run(2)
    with pytest.raises(UnknownRun, match=reason):
        store.find(reference)
    with pytest.raises(InvalidSettings, match="expected @latest"):
        store.find("@0")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "new\nline", "x" * 101, "latest", "CON"])
def test_an_experiment_has_a_name_that_a_folder_can_have(name: str) -> None:
    """A name that leads elsewhere, is too long or reserved is refused."""
    with pytest.raises(InvalidSettings, match="experiment name"):
        checked_experiment(name)


def test_an_id_names_its_experiment() -> None:
    """Also where the experiment has underscores and digits, and for a child of a study."""
    run_id = new_run_id("my_exp_2", 1_700_000_000_999, "0a1b2c3d")
    assert run_id == "my_exp_2_1700000000_0a1b2c3d"
    assert experiment_of(run_id) == experiment_of(f"{run_id}_7") == "my_exp_2"
    assert experiment_of("my_exp") is None


def test_labels_are_those_of_the_last_word(make_run: MakeRun) -> None:
    """Labels change by lines, of scripts as of people; properties are for good."""
    folder = make_run()
    folder.change_tags({"best": "yes", "gone": "1"}, 2000)
    script = '{"t": 3000, "e": "tag", "k": "best", "v": "no"}\n{"e": "property", "k": "p", "v": 1}\n'
    (folder.attempt(1) / "events.jsonl").write_text(script + '{"e": "property", "k": "p", "v": 2}\n')
    folder.change_tags({"gone": None}, 4000)
    assert folder.tags() == {"best": "no"}
    assert folder.properties() == {"p": "1"}


def test_one_process_at_a_time_is_the_runner(make_run: MakeRun) -> None:
    """The lock of a run is held until it is closed; a second process gets an error meanwhile."""
    folder = make_run()
    lock = folder.acquire_lock()
    assert lock is not None
    assert folder.acquire_lock() is None
    assert folder.has_runner()
    os.close(lock)
    assert not folder.has_runner()


def test_the_first_cancel_counts(make_run: MakeRun) -> None:
    """A second one does not change the reason; a further attempt forgets it."""
    folder = make_run()
    assert folder.cancel_request() is None
    folder.request_cancel("one", 1, grace_s=2)
    folder.request_cancel("two", 2)
    request = folder.cancel_request()
    assert request is not None
    assert (request["reason"], request["grace_s"]) == ("one", 2)
    folder.clear_cancel_request()
    assert folder.cancel_request() is None


def test_a_damaged_run_is_named(make_run: MakeRun) -> None:
    """The error of a torn state or a deleted run has its folder."""
    folder = make_run()
    (folder.path / "state.json").write_bytes(b'{"status"')
    with pytest.raises(UnknownRun, match=r"state\.json"):
        folder.state()


def test_deleted_run_is_unknown(store: RunStore, make_run: MakeRun) -> None:
    """A deleted run has neither a folder nor a listing."""
    folder = make_run()
    store.delete(folder)
    assert list(store.folders()) == []
    with pytest.raises(UnknownRun, match="deleted"):
        folder.state()


def test_a_failed_creation_leaves_nothing(
    store: RunStore, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the state cannot be written, there is no run and no rest of one."""
    record = make_run().record()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stoker_runs.records.folder.append_line", fail)
    with pytest.raises(OSError, match="No space"):
        store.create(record, RunState())
    assert list((store.runs_dir / ".staging").iterdir()) == []


def test_a_workspace_without_runs_has_none(tmp_path: Path) -> None:
    """Looking creates nothing."""
    store = RunStore(tmp_path / "runs")
    assert (list(store.folders()), store.experiments()) == ([], [])
    assert not store.runs_dir.exists()
