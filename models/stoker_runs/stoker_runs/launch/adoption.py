"""Adoption: a run that goes on and has no runner gets one from whoever comes by."""

from __future__ import annotations

from collections.abc import Callable

from stoker.errors import UnknownRun
from stoker.workspace import Workspace
from stoker_runs.launch.runner_start import spawn_runner
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.index import RunIndex
from stoker_runs.records.store import RunStore

__all__ = ["adopt", "adopt_all"]


def adopt(
    folder: RunFolder, workspace: Workspace, spawn: Callable[[RunFolder, Workspace], None] = spawn_runner
) -> bool:
    """Give a run a runner if it needs one; returns whether it did.

    Args:
        folder: The run.
        workspace: Where it is.
        spawn: Starts the runner.
    """
    try:
        if folder.state().is_terminal or folder.has_runner():
            return False
    except UnknownRun:
        return False
    spawn(folder, workspace)
    return True


def adopt_all(workspace: Workspace, index: RunIndex | None = None) -> list[str]:
    """Give each run that needs one a runner; returns their ids.

    Args:
        workspace: Where they are.
        index: Its index, where somebody will ask that for more.
    """
    store = RunStore(workspace.runs_dir)
    if not store.runs_dir.is_dir():
        return []
    going_on = (index or RunIndex(store)).going_on()
    return [run_id for run_id in going_on if adopt(store.get(run_id), workspace)]
