"""Copies runs to an MLflow tracking store, for its UI and its clients: each run once, and later its changes.

The tag `stoker.run_id` identifies a copied run. Outputs are not copied: `stoker.folder` is their folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from stoker.errors import OperatorError
from stoker_runs.records.comparing import parameters_of
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.journal import numbers_of
from stoker_runs.records.states import RunState, Status

__all__ = ["Mirror"]

_RUN: Final = "stoker.run_id"
_STAMP: Final = "stoker.stamp"
_MEASURED: Final = "stoker.values"
_STATUSES: Final[Mapping[Status, str]] = {
    Status.COMPLETED: "FINISHED",
    Status.FAILED: "FAILED",
    Status.CANCELED: "KILLED",
}
# Limits of MLflow's stores for one request, and for the length of a text.
_BATCH: Final = 1000
_PARAMETERS: Final = 100
_LONGEST: Final = 6000
_FOREIGN: Final = re.compile(r"[^\w/. :-]", re.ASCII)


class Mirror:
    """An MLflow tracking store.

    Args:
        address: Its tracking URI, such as `sqlite:///runs.db` or `http://127.0.0.1:5000`.

    Raises:
        OperatorError: MLflow is not installed, or its store cannot be opened.
    """

    def __init__(self, address: str) -> None:
        try:
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise OperatorError(
                f"mirroring needs MLflow ({error.name} is missing): pip install mlflow-skinny sqlalchemy alembic"
            ) from error
        self._metric, self._param, self._tag, self._error = Metric, Param, RunTag, MlflowException
        self._client: Any = MlflowClient(tracking_uri=address)
        self._experiments: dict[str, str] = {}
        self._copies: dict[str, tuple[str, Mapping[str, str]]] = {}

    def put(self, folder: RunFolder) -> bool:
        """Copy a run, or its changes since the last copy; returns whether there were any.

        Raises:
            OperatorError: The store refuses it.
        """
        try:
            return self._put(folder)
        except self._error as error:
            raise OperatorError(f"the tracking store does not take {folder.id}: {error}") from error

    def _put(self, folder: RunFolder) -> bool:
        record, state = folder.record(), folder.state()
        experiment = self._experiment(record.experiment)
        stamp = _stamp(folder, state)
        known, tags = self._copies.get(record.id, ("", {}))
        if tags.get(_STAMP) == stamp:
            return False
        if not known:
            labels = {_RUN: record.id, "mlflow.runName": record.id, "stoker.folder": str(folder.path)}
            created = self._client.create_run(experiment, record.created_ms, labels, record.id)
            known = created.info.run_id
        params = [
            self._param(_name(name), value[:_LONGEST])
            for name, value in parameters_of(folder).items()
            if value
        ]
        done = int(tags.get(_MEASURED, 0))
        values = islice(_values(folder), done, None)
        for part in _batches(values, _BATCH):
            metrics = [self._metric(name, value, time_ms, step) for name, value, time_ms, step in part]
            self._client.log_batch(known, metrics=metrics)
            done += len(part)
            # If this is interrupted here, the next copy continues after these values.
            self._client.set_tag(known, _MEASURED, str(done))
        if _STAMP not in tags:
            for some in _batches(params, _PARAMETERS):
                self._client.log_batch(known, params=some)
        labels = {**folder.properties(), **folder.tags(), "mlflow.source.name": record.definition.script}
        new = [self._tag(_name(name), value[:_LONGEST]) for name, value in labels.items()]
        self._client.log_batch(known, tags=new[:_PARAMETERS])
        if state.is_terminal:
            self._client.set_terminated(known, _STATUSES[state.status], state.ended_ms)
        # Last, so that an interrupted copy does not count as complete.
        self._client.set_tag(known, _STAMP, stamp)
        self._copies[record.id] = known, {_STAMP: stamp, _MEASURED: str(done)}
        return True

    def _experiment(self, name: str) -> str:
        """The id of an experiment; also loads which of its runs are copies."""
        if name in self._experiments:
            return self._experiments[name]
        found = self._client.get_experiment_by_name(name)
        key: str = self._client.create_experiment(name) if found is None else found.experiment_id
        token: str | None = ""
        while token is not None:
            page = self._client.search_runs([key], page_token=token or None, max_results=_BATCH)
            for run in page:
                if _RUN in run.data.tags:
                    self._copies[run.data.tags[_RUN]] = run.info.run_id, run.data.tags
            token = page.token or None
        self._experiments[name] = key
        return key


def _stamp(folder: RunFolder, state: RunState) -> str:
    """A text that changes with every change of a run that is copied."""
    sizes = [
        path.stat().st_size
        for number in folder.attempts()
        for path in (folder.attempt(number) / "metrics.jsonl", folder.attempt(number) / "events.jsonl")
        if path.exists()
    ]
    own = folder.events.stat().st_size if folder.events.exists() else 0
    return f"{state.status.value} {own} {sum(sizes)}"


def _values(folder: RunFolder) -> Iterator[tuple[str, float, int, int]]:
    """All numeric values: name, value, time in ms, step."""
    counts: dict[str, int] = {}
    for line in folder.metric_lines():
        step = line.get("s") if "y" not in line else None
        for name, values in numbers_of(line):
            for value in values:
                place = counts[name] = counts.get(name, -1) + 1
                yield _name(name), value, int(line.get("t", 0)), step if isinstance(step, int) else place


def _name(text: str) -> str:
    """A valid name in MLflow."""
    return _FOREIGN.sub("_", text).strip("-").strip()[:250] or "_"


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
