"""Output about sweeps: the children with the best first, during the sweep and at its end."""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.terminal import note, print_json, table
from stoker_runs.commands.run_output import found_store, stream

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stoker.settings.workspace import Workspace
    from stoker_runs.records.folder import RunFolder
    from stoker_runs.records.store import RunStore
    from stoker_runs.tuning.children import Trial
    from stoker_runs.tuning.definition import SweepDefinition

_SHORT: Final = 60
_SHOWN_AT_THE_END: Final = 10
_BAR: Final = 20


def trials_with_definition(folder: RunFolder, store: RunStore) -> tuple[SweepDefinition, list[Trial]]:
    """Return what was asked of a sweep, and its children with the best first.

    Raises:
        UnknownRun: It is no sweep.
    """
    from stoker_runs.tuning.children import Trials

    trials = Trials(folder, store)
    return trials.terms, trials.read()


def children_table(terms: SweepDefinition, trials: Sequence[Trial]) -> str:
    """The children as a table, in their order: id, status, best value, parameters, and why it is so."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.parameters))
    header = ("RUN", "STATUS", terms.metric.upper(), "VALUES", *(name.lstrip("-") for name in names), "")
    rows = [
        (
            trial.id,
            trial.status.value,
            "-" if trial.best is None else f"{trial.best:.6g}",
            str(trial.count),
            *(_short(trial.parameters.get(name, "-")) for name in names),
            trial.reason[:_SHORT],
        )
        for trial in trials
    ]
    return table([header, *rows])


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def as_json(trial: Trial) -> dict[str, Any]:
    """A child for programs."""
    return {
        "id": trial.id,
        "status": trial.status.value,
        "best": trial.best,
        "values": trial.count,
        "parameters": trial.parameters,
        "reason": trial.reason,
    }


def progress_line(terms: SweepDefinition, trials: Sequence[Trial]) -> str:
    """How far a sweep is, in one line: a bar, its children by status, and the best of them."""
    ended = sum(trial.status.value in ("Completed", "Failed", "Canceled") for trial in trials)
    full = _BAR * ended // terms.total
    counts = Counter(trial.status.value for trial in trials)
    by_status = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    best = f"; best {terms.metric} {trials[0].best:.6g}" if trials and trials[0].best is not None else ""
    return f"[{'#' * full}{'.' * (_BAR - full)}] {ended} of {terms.total} ended ({by_status or 'none yet'}){best}"


def follow_sweep(folder: RunFolder, workspace: Workspace) -> int:
    """Follow a sweep by what it prints until it has ended; then print the best runs.

    Returns:
        The exit status: 0 for Completed, 1 for Failed and Canceled, 130 where it goes on.
    """
    from stoker_runs.records.store import RunStore

    store = RunStore(workspace.runs_dir)
    code = stream(folder, workspace, attempt=folder.state().attempt)
    if not folder.state().is_terminal:
        return code
    terms, trials = trials_with_definition(folder, store)
    if trials:
        sys.stdout.write(children_table(terms, trials[:_SHOWN_AT_THE_END]))
    if len(trials) > _SHOWN_AT_THE_END:
        note(f"{len(trials) - _SHOWN_AT_THE_END} more: stoker runs children {folder.id}")
    if trials and trials[0].best is not None:
        note(f"the best is {trials[0].id}: stoker runs show {trials[0].id}")
    return code


_COMPARED: Final = 8


def list_children(args: argparse.Namespace) -> int:
    """Print the runs of a sweep, the best first."""
    store = found_store(args)
    terms, trials = trials_with_definition(store.find(args.reference), store)
    if args.json:
        print_json([as_json(trial) for trial in trials])
    elif trials:
        sys.stdout.write(children_table(terms, trials))
    else:
        note("none of its runs has begun")
    return 0


def sweep_text(args: argparse.Namespace, folder: RunFolder) -> str:
    """A sweep below its facts: how far it is, what was asked, and its runs."""
    from stoker_runs.tuning.policies import policy_text

    terms, trials = trials_with_definition(folder, found_store(args))
    rows = children_table(terms, trials) if trials else ""
    space = "".join(f"parameter {name}: {one}\n" for name, one in terms.sampler.space.items())
    how = f"{terms.goal.value} {terms.metric}, {terms.sampler.kind} sampling with seed {terms.sampler.seed}"
    return f"{progress_line(terms, trials)}\n{how}, {policy_text(terms.policy)}\n{space}\n{rows}"


def sweep_json(args: argparse.Namespace, folder: RunFolder) -> dict[str, Any]:
    """The runs of a sweep for programs, and which one is the best; None where none has a value."""
    _, trials = trials_with_definition(folder, found_store(args))
    best = trials[0].id if trials and trials[0].best is not None else None
    return {"children": [as_json(trial) for trial in trials], "best": best}


def best_children(args: argparse.Namespace, folder: RunFolder) -> list[RunFolder]:
    """The runs of a sweep that are compared where it is named alone; of another run, that run."""
    from stoker_runs.records.record import SWEEP

    if folder.record().kind != SWEEP:
        return [folder]
    store = found_store(args)
    _, trials = trials_with_definition(folder, store)
    return [store.get(trial.id) for trial in trials[:_COMPARED]]
