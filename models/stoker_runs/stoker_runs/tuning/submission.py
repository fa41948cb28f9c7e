"""Submission of a sweep: what was asked is checked, its files are kept once for all children, a runner starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stoker.errors import SubmissionRefused
from stoker.workspace import Workspace
from stoker_runs.launch.runner_start import spawn_runner
from stoker_runs.launch.submission import Request, submit
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.snapshots import Snapshot
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.children import terms_of
from stoker_runs.tuning.terms import Again, Terms

__all__ = ["going_on", "submit_sweep"]


def submit_sweep(
    request: Request,
    asked: Terms,
    workspace: Workspace,
    *,
    progress: Callable[[int, int], None] | None = None,
    spawn: Callable[[RunFolder, Workspace], None] = spawn_runner,
) -> tuple[RunFolder, Snapshot]:
    """Create a sweep and start its runner.

    Args:
        request: The script, as each child runs it but for its parameters.
        asked: How they differ.
        workspace: Where its folder will be.
        progress: Called with the files that are kept so far, and the files in all.
        spawn: Starts the runner.

    Returns:
        The sweep's folder, and what was kept of the source.

    Raises:
        OperatorError: It is refused; nothing was written but files of the snapshot.
    """
    store = RunStore(workspace.runs_dir)
    for earlier in asked.warm_start:
        terms_of(store.get(earlier).record())
    return submit(replace(request, sweep=asked.to_json()), workspace, progress=progress, spawn=spawn)


def going_on(runs: Sequence[str], store: RunStore) -> list[Again]:
    """Return children of earlier sweeps as those that go on in a new one, with their parameters.

    Args:
        runs: Their ids.
        store: Where they are.

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
        terms = terms_of(store.get(record.parent).record())
        found.append(Again(run_id, terms.parameters(int(run_id.rpartition("_")[2]))))
    return found
