"""What `stoker runs` shows of sweeps: their runs, the best first."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from stoker_runs.commands.run_output import found_workspace, note
from stoker_runs.commands.sweep_output import as_json, children_table, progress_line, trials_with_terms

if TYPE_CHECKING:
    import argparse

    from stoker_runs.records.folder import RunFolder
    from stoker_runs.records.store import RunStore

__all__ = ["best_children", "list_children", "sweep_json", "sweep_text"]

_COMPARED: Final = 8


def _store(args: argparse.Namespace) -> RunStore:
    from stoker_runs.records.store import RunStore

    return RunStore(found_workspace(args).runs_dir)


def list_children(args: argparse.Namespace) -> int:
    """Print the runs of a sweep, the best first."""
    store = _store(args)
    terms, trials = trials_with_terms(store.find(args.reference), store)
    if args.json:
        sys.stdout.write(json.dumps([as_json(trial) for trial in trials], indent=2) + "\n")
    elif trials:
        sys.stdout.write(children_table(terms, trials))
    else:
        note("none of its runs has begun")
    return 0


def sweep_text(args: argparse.Namespace, folder: RunFolder) -> str:
    """A sweep below its facts: how far it is, what was asked, and its runs."""
    from stoker_runs.tuning.policies import policy_text

    terms, trials = trials_with_terms(folder, _store(args))
    rows = children_table(terms, trials) if trials else ""
    space = "".join(f"parameter {name}: {one}\n" for name, one in terms.sampler.space.items())
    how = f"{terms.goal.value} {terms.metric}, {terms.sampler.kind} sampling with seed {terms.sampler.seed}"
    return f"{progress_line(terms, trials)}\n{how}, {policy_text(terms.policy)}\n{space}\n{rows}"


def sweep_json(args: argparse.Namespace, folder: RunFolder) -> dict[str, Any]:
    """The runs of a sweep for programs, and which one is the best; None where none has a value."""
    _, trials = trials_with_terms(folder, _store(args))
    best = trials[0].id if trials and trials[0].best is not None else None
    return {"children": [as_json(trial) for trial in trials], "best": best}


def best_children(args: argparse.Namespace, folder: RunFolder) -> list[RunFolder]:
    """The runs of a sweep that are compared where it is named alone; of another run, that run."""
    from stoker_runs.records.record import SWEEP

    if folder.record().kind != SWEEP:
        return [folder]
    store = _store(args)
    _, trials = trials_with_terms(folder, store)
    return [store.get(trial.id) for trial in trials[:_COMPARED]]
