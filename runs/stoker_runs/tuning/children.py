"""The submission of a sweep, and its children on disk: creating one, reading its metrics, ranking all of them."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from stoker.settings.workspace import Workspace
from stoker_run.records import from_json
from stoker_runs.errors import SubmissionRefused, UnknownRun
from stoker_runs.launch.runners import spawn_runner
from stoker_runs.launch.submission import Request, submit
from stoker_runs.records.folder import RunFolder, object_of
from stoker_runs.records.record import SWEEP, RunRecord
from stoker_runs.records.snapshots import Snapshot
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore
from stoker_runs.records.summary import metric_statistics
from stoker_runs.tuning.definition import BAYESIAN, ContinuedChild, SweepDefinition, Value, arguments_of
from stoker_runs.tuning.planning import Child
from stoker_runs.tuning.policies import Curve, best_of


class Trial(Struct, frozen=True):
    """One child, as users compare it with the others.

    Attributes:
        number: Which child it is, from 0 up.
        reason: What it waits for, or why it was ended or failed.
        best: The best value of the primary metric that it has logged; None where there is none.
        count: How many values of it there are.
    """

    number: int
    id: str
    parameters: dict[str, Value]
    status: Status
    reason: str
    best: float | None
    count: int


def definition_of(record: RunRecord) -> SweepDefinition:
    """Return the definition of a sweep.

    Raises:
        UnknownRun: The run is none.
    """
    if record.kind != SWEEP:
        raise UnknownRun(f"{record.id} is no sweep: it has no children; stoker tune begins one")
    return SweepDefinition.from_json(record.sweep)


def child_folders(record: RunRecord, total: int, store: RunStore) -> dict[int, RunFolder]:
    """Return the children of a sweep that have begun, by their numbers."""
    home = store.runs_dir / record.experiment
    paths = {number: home / f"{record.id}_{number}" for number in range(total)}
    return {number: RunFolder(path) for number, path in paths.items() if path.is_dir()}


def parameters_of(child: RunFolder, terms: SweepDefinition, number: int) -> dict[str, Value]:
    """Return the parameters of a child that has begun."""
    if terms.sampler.kind == BAYESIAN:
        return dict(child.record().parameters)
    return terms.parameters(number)


def create_child(
    sweep: RunFolder,
    record: RunRecord,
    terms: SweepDefinition,
    number: int,
    parameters: Mapping[str, Value],
    store: RunStore,
    now_ms: int,
) -> RunFolder:
    """Create one child: the sweep's files, packages and data, with parameters of its own.

    Args:
        number: Which child, from 0 up.
    """
    definition = record.definition
    child_definition = definition.replace(
        arguments=(*definition.arguments, *arguments_of(parameters)),
        resume_from=terms.resumes(number) or definition.resume_from,
    )
    child = RunRecord(
        f"{record.id}_{number}",
        record.experiment,
        now_ms,
        child_definition,
        snapshot=record.snapshot,
        data=record.data,
        parent=record.id,
        properties=record.properties,
        tags=record.tags,
        parameters=parameters if terms.sampler.kind == BAYESIAN else {},
    )

    def complete(staged: RunFolder) -> None:
        shutil.copytree(sweep.environment, staged.environment, dirs_exist_ok=True)

    state = RunState(since_ms=now_ms, submitted_ms=now_ms, attempts=child_definition.attempts)
    return store.create(child, state, complete)


class ChildReader:
    """Reads the state and the primary metric of a child; an ended child is read once."""

    def __init__(self, folder: RunFolder, metric: str) -> None:
        self.folder = folder
        self._metric = metric
        self._number = int(folder.id.rpartition("_")[2])
        # Names of other letters are written in several ways.
        self._mark = json.dumps(metric)[1:-1].encode() if metric.isascii() else b""
        self._values: list[float] = []
        self._offsets: dict[Path, int] = {}
        self._last: Child | None = None
        self.state: RunState = RunState()

    def read(self) -> Child:
        """Return the current state of the child.

        Raises:
            UnknownRun: It is not there any more.
        """
        if self._last is not None:
            return self._last
        # Asked before its metrics are read: what came before the end is in them.
        self.state = self.folder.state()
        for path in self.folder.metric_files():
            self._read_on(path)
        status, error = self.state.status, self.state.error
        found = Child(
            status,
            Curve(self._values, self.state.is_terminal, self._number),
            is_cancel_requested=self.folder.cancel_request() is not None,
            failure=error,
        )
        if self.state.is_terminal:
            names = () if self._values else sorted(metric_statistics(self.folder.metric_files()))
            self._last = found = replace(found, logged=tuple(names))
        return found

    def _read_on(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                lines, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._offsets[path] = self._offsets.get(path, 0) + len(lines) + len(newline)
        for line in lines.split(b"\n"):
            if self._mark not in line:
                continue
            content = object_of(line) or {}
            value = from_json(content.get("v"))
            if content.get("k") == self._metric and "y" not in content and isinstance(value, int | float):
                self._values.append(float(value))


class Trials:
    """The children of a sweep, for repeated reading.

    Raises:
        UnknownRun: It is no sweep.
    """

    def __init__(self, folder: RunFolder, store: RunStore) -> None:
        self._record = folder.record()
        self._store = store
        self.terms = definition_of(self._record)
        self._readers: dict[int, ChildReader] = {}

    def read(self) -> list[Trial]:
        """Return the children, the best first; those without a value come last, in their order."""
        folders = child_folders(self._record, self.terms.total, self._store)
        found = []
        for number, child in folders.items():
            reader = self._readers.setdefault(number, ChildReader(child, self.terms.metric))
            try:
                found.append(_trial(number, reader, reader.read().curve.values, self.terms))
            except UnknownRun:
                # Deleted meanwhile.
                continue
        return _ranked(found, self.terms)


def _trial(number: int, reader: ChildReader, values: Sequence[float], terms: SweepDefinition) -> Trial:
    state = reader.state
    reason = state.reason if state.error is None else f"{state.error.code}: {state.error.message}"
    best = best_of(values, terms.goal)
    return Trial(
        number,
        reader.folder.id,
        parameters_of(reader.folder, terms, number),
        state.status,
        reason,
        best,
        len(values),
    )


def _ranked(trials: Sequence[Trial], terms: SweepDefinition) -> list[Trial]:
    def worth(trial: Trial) -> float:
        return -math.inf if trial.best is None else terms.goal.sign * trial.best

    return sorted(trials, key=worth, reverse=True)


def trials_of(folder: RunFolder, store: RunStore, *, with_earlier: bool = False) -> list[Trial]:
    """Return the children of a sweep, the best first; those without a value come last, in their order.

    Args:
        with_earlier: With those of the sweeps that it was compared with.

    Raises:
        UnknownRun: It is no sweep.
    """
    trials = Trials(folder, store)
    found = trials.read()
    if with_earlier:
        for earlier in trials.terms.warm_start:
            with contextlib.suppress(UnknownRun):
                found += trials_of(store.get(earlier), store, with_earlier=True)
    return _ranked(found, trials.terms)


def earlier_curves(terms: SweepDefinition, store: RunStore) -> list[Curve]:
    """Return the primary metric of the children of earlier sweeps; deleted ones are left out."""
    curves: list[Curve] = []
    for run_id in terms.warm_start:
        try:
            record = store.get(run_id).record()
            before = definition_of(record)
            folders: Sequence[RunFolder] = list(child_folders(record, before.total, store).values())
        except UnknownRun:
            continue
        curves += earlier_curves(before, store)
        for folder in folders:
            curve = ChildReader(folder, terms.metric).read().curve
            curves.append(replace(curve, is_over=True))
    return curves


def earlier_trials(terms: SweepDefinition, store: RunStore) -> list[Trial]:
    """Return the children of earlier sweeps with the same metric and goal; deleted ones are left out."""
    found: list[Trial] = []
    for run_id in terms.warm_start:
        with contextlib.suppress(UnknownRun):
            trials = Trials(store.get(run_id), store)
            found += earlier_trials(trials.terms, store)
            if (trials.terms.metric, trials.terms.goal) == (terms.metric, terms.goal):
                found += trials.read()
    return found


def submit_sweep(
    request: Request,
    sweep: SweepDefinition,
    workspace: Workspace,
    *,
    spawn: Callable[[RunFolder, Workspace], None] = spawn_runner,
) -> tuple[RunFolder, Snapshot]:
    """Create a sweep and start its runner.

    Args:
        request: The script, as each child runs it but for its parameters.

    Returns:
        The sweep's folder, and what was kept of the source.

    Raises:
        OperatorError: It is refused; nothing was written but files of the snapshot.
    """
    store = RunStore(workspace.runs_dir)
    for earlier in sweep.warm_start:
        definition_of(store.get(earlier).record())
    return submit(replace(request, sweep=sweep.to_json()), workspace, spawn=spawn)


def continued_children(runs: Sequence[str], store: RunStore) -> list[ContinuedChild]:
    """Return children of earlier sweeps as those that go on in a new one, with their parameters.

    Raises:
        UnknownRun: There is no such run.
        SubmissionRefused: One is no child of a sweep, or has not ended.
    """
    found = []
    for run_id in runs:
        folder = store.get(run_id)
        record = folder.record()
        if not record.parent:
            raise SubmissionRefused(
                f"{run_id} is no child of a sweep; 'stoker submit --resume RUN' goes on with it"
            )
        if not folder.state().is_terminal:
            raise SubmissionRefused(f"{run_id} is {folder.state().status}: only what has ended can go on")
        terms = definition_of(store.get(record.parent).record())
        number = int(run_id.rpartition("_")[2])
        found.append(ContinuedChild(run_id, parameters_of(folder, terms, number)))
    return found
