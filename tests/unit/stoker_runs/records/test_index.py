"""The index: it lists the folders' content, after any damage to the index."""

import json
from collections.abc import Callable

import pytest
from tests.unit.stoker_runs.records.conftest import MakeRun

from stoker.errors import InvalidSettings
from stoker_runs.records import index as index_module
from stoker_runs.records.index import RunIndex
from stoker_runs.records.states import Status
from stoker_runs.records.store import RunStore
from stoker_runs.records.summary import SortKey, read_conditions


def metric_statistics(**values: object) -> list[dict[str, object]]:
    return [{"k": name, "v": value} for name, value in values.items()]


@pytest.fixture
def index(store: RunStore) -> RunIndex:
    return RunIndex(store)


def test_runs_are_listed_newest_first_with_their_last_numbers(index: RunIndex, make_run: MakeRun) -> None:
    """Each has the newest, least and greatest value of the requested metrics."""
    make_run(
        1, metrics=[*metric_statistics(loss=3.0), *metric_statistics(loss="NaN"), *metric_statistics(loss=1)]
    )
    make_run(2, experiment="waste", metrics=[{"k": "loss", "v": "loss.png", "y": "image"}])
    newest, first = index.runs(metrics=["loss"])
    assert (newest.experiment, dict(newest.metrics)) == ("waste", {})
    numbers = first.metrics["loss"]
    assert (numbers.last, numbers.least, numbers.most, numbers.count) == (1.0, 1.0, 3.0, 3)
    assert [run.id for run in index.runs("digits")] == [first.id]
    assert index.metric_names() == ["loss"]
    assert index.metric_names("waste") == []


def test_only_changed_runs_are_read_again(
    index: RunIndex, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has ended is read once, and once more when it gets a label; one that goes on each time."""
    ended, running = make_run(1), make_run(2, status=Status.RUNNING)
    read: list[str] = []
    summarize: Callable[..., object] = index_module.summarize
    monkeypatch.setattr(index_module, "summarize", lambda folder: read.append(folder.id) or summarize(folder))
    index.runs()
    index.runs()
    assert sorted(read) == sorted([ended.id, running.id, running.id])
    read.clear()
    ended.change_tags({"best": "yes"}, 5000)
    assert {run.id: dict(run.tags) for run in index.runs()}[ended.id] == {"best": "yes"}
    assert sorted(read) == sorted([ended.id, running.id])


def test_metrics_are_read_only_for_lists_that_show_them(
    index: RunIndex, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain list reads none; lists with metrics read ended runs once, and running ones each time."""
    ended = make_run(1, metrics=metric_statistics(loss=1))
    running = make_run(2, metrics=metric_statistics(loss=2), status=Status.RUNNING)
    read: list[str] = []
    measure: Callable[..., object] = index_module.metric_statistics
    monkeypatch.setattr(
        index_module,
        "metric_statistics",
        lambda files: read.extend(path.parents[2].name for path in files) or measure(files),
    )
    assert len(index.runs()) == index.count() == 2
    assert index.unfinished_runs() == [running.id]
    assert read == []
    assert [run.metrics["loss"].last for run in index.runs(metrics=["loss"], limit=1)] == [2]
    assert read == [running.id]
    read.clear()
    for _ in range(2):
        assert [run.metrics["loss"].last for run in index.runs(metrics=["loss"])] == [2, 1]
    assert read == [running.id, ended.id, running.id]
    assert index.metric_names("digits") == ["loss"]


def test_a_command_looks_for_changes_once(
    store: RunStore, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later questions are answered by the index alone; the newest runs are read without the others."""
    first, second, third = (
        make_run(1, metrics=metric_statistics(a=1)),
        make_run(2, experiment="waste"),
        make_run(3),
    )
    index = RunIndex(store, once=True)
    assert index.unfinished_runs() == []
    monkeypatch.setattr(store, "paths", lambda _: pytest.fail("it has looked again"))
    assert [run.id for run in index.runs(metrics=["a"], limit=2)] == [third.id, second.id]
    assert [run.id for run in index.runs("digits", limit=1)] == [third.id]
    assert (index.count(), index.count("digits")) == (3, 2)
    assert index.runs("digits")[-1].id == first.id


def test_deleted_run_is_not_listed(index: RunIndex, store: RunStore, make_run: MakeRun) -> None:
    """A deleted run and its metrics are gone; other experiments stay."""
    gone, stays = make_run(1, metrics=metric_statistics(loss=1)), make_run(2, experiment="waste")
    index.runs()
    store.delete(gone)
    assert index.runs("digits") == []
    assert [run.id for run in index.runs(metrics=["loss"])] == [stays.id]
    assert index.metric_names() == []


@pytest.mark.parametrize("content", [None, b"", b"no database at all", b"SQLite format 3\0" + b"x" * 4000])
def test_a_lost_or_damaged_index_is_made_anew(
    index: RunIndex, store: RunStore, make_run: MakeRun, content: bytes | None
) -> None:
    """It is a cache: without it the list is the same."""
    make_run(1, metrics=metric_statistics(accuracy=0.9))
    before = index.runs(metrics=["accuracy"])
    path = store.runs_dir / ".index.sqlite"
    for rest in store.runs_dir.glob(".index.sqlite*"):
        rest.unlink()
    if content is not None:
        path.write_bytes(content)
    assert index.runs(metrics=["accuracy"]) == before


def test_a_damaged_run_does_not_hide_the_others(index: RunIndex, make_run: MakeRun) -> None:
    """A run whose record is torn is passed over."""
    broken, whole = make_run(1), make_run(2)
    (broken.path / "run.json").write_text(json.dumps({"id": broken.id}))
    assert [run.id for run in index.runs()] == [whole.id]


def test_conditions_choose_and_keys_sort(index: RunIndex, make_run: MakeRun) -> None:
    """They use metrics, facts and labels; a run without a compared value is not chosen, and sorted last."""
    for number, accuracy in enumerate([0.9, 0.7, None, 0.95], 1):
        run = make_run(number, metrics=metric_statistics(accuracy=accuracy) if accuracy else [])
        run.change_tags({"lr": str(number)}, 5000)
    runs = index.runs(metrics=["accuracy"])

    def chosen(text: str) -> list[str]:
        conditions = read_conditions(text)
        return sorted(run.tags["lr"] for run in runs if all(one.holds(run) for one in conditions))

    assert chosen("accuracy > 0.8") == ["1", "4"]
    assert chosen("accuracy>=0.7 and tags.lr != 4 AND status = Completed") == ["1", "2"]
    assert chosen("accuracy == 'nan'") == []
    assert chosen("created > 2023-11-14") == ["1", "2", "3", "4"]
    assert [run.tags["lr"] for run in SortKey("-accuracy").sort(runs)] == ["4", "1", "2", "3"]
    assert [run.tags["lr"] for run in SortKey("created").sort(runs)] == ["1", "2", "3", "4"]
    # Runs that ended before they began have no duration.
    assert [run.tags["lr"] for run in SortKey("duration").sort(runs)] == ["4", "3", "2", "1"]
    assert [condition.metric for condition in read_conditions("accuracy > 1 and id = x")] == [
        "accuracy",
        None,
    ]


@pytest.mark.parametrize("text", ["accuracy", "> 3", "a > 1 and b"])
def test_text_that_is_no_condition_is_refused(text: str) -> None:
    """The message shows the form."""
    with pytest.raises(InvalidSettings, match=r"accuracy > 0\.9"):
        read_conditions(text)


def test_a_metric_is_compared_with_numbers(index: RunIndex, make_run: MakeRun) -> None:
    """A word behind it is refused by name."""
    make_run(1, metrics=metric_statistics(accuracy=1))
    (run,) = index.runs(metrics=["accuracy"])
    (condition,) = read_conditions("accuracy > high")
    with pytest.raises(InvalidSettings, match="not with 'high'"):
        condition.holds(run)
