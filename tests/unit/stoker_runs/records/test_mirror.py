"""Mirrors: with a puppet of MLflow's client, what of each run is copied, and that it is copied once."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.unit.stoker_runs.records.conftest import MakeRun

from stoker.errors import OperatorError
from stoker_runs.records.exports import Mirror
from stoker_runs.records.states import RunState, Status


class MlflowError(Exception):
    """The error of the client."""


class Store:
    """A tracking store in memory; each client of an address sees the same."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, SimpleNamespace] = {}
        self.fails_after: int | None = None

    def client(self, tracking_uri: str) -> "Client":
        assert tracking_uri == "sqlite:///runs.db"
        return Client(self)


class Page(list[Any]):
    token = None


class Client:
    """As much of MLflow's client as a mirror asks."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def get_experiment_by_name(self, name: str) -> Any:
        key = self.store.experiments.get(name)
        return None if key is None else SimpleNamespace(experiment_id=key)

    def create_experiment(self, name: str) -> str:
        return self.store.experiments.setdefault(name, str(len(self.store.experiments)))

    def search_runs(self, keys: list[str], page_token: str | None, max_results: int) -> Page:
        del page_token, max_results
        return Page(run for run in self.store.runs.values() if run.experiment in keys)

    def create_run(self, experiment: str, start_ms: int, tags: dict[str, str], name: str) -> Any:
        key = f"r{len(self.store.runs)}"
        self.store.runs[key] = SimpleNamespace(
            experiment=experiment,
            info=SimpleNamespace(run_id=key, start=start_ms, name=name),
            data=SimpleNamespace(tags=dict(tags)),
            metrics=[],
            params={},
            ended=None,
        )
        return self.store.runs[key]

    def log_batch(self, key: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        run = self.store.runs[key]
        if metrics and self.store.fails_after is not None:
            self.store.fails_after -= 1
            if self.store.fails_after < 0:
                raise MlflowError("no route")
        run.metrics.extend(metrics)
        run.params.update(params)
        run.data.tags.update(tags)

    def set_tag(self, key: str, name: str, value: str) -> None:
        self.store.runs[key].data.tags[name] = value

    def set_terminated(self, key: str, status: str, end_ms: int) -> None:
        self.store.runs[key].ended = (status, end_ms)


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch) -> Store:
    """MLflow, as far as a mirror imports it."""
    made = Store()
    contents: dict[str, dict[str, Any]] = {
        "mlflow": {},
        "mlflow.entities": {
            "Metric": lambda *one: one,
            "Param": lambda *one: one,
            "RunTag": lambda *one: one,
        },
        "mlflow.exceptions": {"MlflowException": MlflowError},
        "mlflow.tracking": {"MlflowClient": made.client},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return made


def put(*folders: Any) -> list[bool]:
    """Copy runs by a new mirror, as each command has one."""
    mirror = Mirror("sqlite:///runs.db")
    return [mirror.put(folder) for folder in folders]


def test_a_run_is_copied_once_and_then_its_new_lines(tracking: Store, make_run: MakeRun) -> None:
    """Parameters, values with steps and times, labels, its end; again only where there is something new."""
    lines = [{"k": "loss", "v": 1.0 / (n + 1), "s": n, "t": n} for n in range(3)]
    running = make_run(1, status=Status.RUNNING, arguments=("--lr", "0.1"), metrics=lines)
    failed = make_run(2, status=Status.FAILED, experiment="waste")
    assert put(running, failed) == [True, True]
    copy, other = tracking.runs.values()
    assert copy.data.tags["stoker.run_id"] == running.id
    assert (copy.params, copy.ended) == ({"lr": "0.1"}, None)
    assert copy.metrics == [("loss", 1.0, 0, 0), ("loss", 0.5, 1, 1), ("loss", 1 / 3, 2, 2)]
    assert other.ended == ("FAILED", failed.state().ended_ms)
    assert put(running, failed) == [False, False]
    with (running.attempt(1) / "metrics.jsonl").open("a") as file:
        file.write('{"k": "loss", "v": 0.1, "t": 9}\n')
    running.change_tags({"best": "yes"}, 5)
    running.write_state(RunState(Status.COMPLETED, 9, ended_ms=9))
    assert put(running) == [True]
    assert len(tracking.runs) == 2
    assert copy.metrics[3:] == [("loss", 0.1, 9, 3)]
    assert (copy.data.tags["best"], copy.ended) == ("yes", ("FINISHED", 9))


def test_a_copy_that_was_cut_off_goes_on(
    tracking: Store, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that arrived are not sent again."""
    monkeypatch.setattr("stoker_runs.records.exports._BATCH", 2)
    run = make_run(1, metrics=[{"k": "loss", "v": n} for n in range(5)])
    tracking.fails_after = 1
    with pytest.raises(OperatorError, match="no route"):
        put(run)
    tracking.fails_after = None
    assert put(run) == [True]
    (copy,) = tracking.runs.values()
    assert [value for _, value, _, _ in copy.metrics] == [0, 1, 2, 3, 4]
    assert copy.ended is not None


def test_missing_mlflow_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, with the command."""
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    with pytest.raises(OperatorError, match="pip install mlflow-skinny"):
        Mirror("sqlite:///runs.db")
