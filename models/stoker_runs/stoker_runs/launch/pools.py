"""Which slots the runs of a compute target share, and what a run asks of them where it says nothing."""

from __future__ import annotations

from stoker.workspace import Workspace
from stoker_runs.launch.slots import Slots
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import Target

__all__ = ["slots_of"]


def slots_of(target: Target, workspace: Workspace) -> Slots | None:
    """The slots of a target; None where it has none, or somebody else keeps them."""
    capacity = target.capacity
    if capacity is None:
        return None
    return Slots(workspace.root / "slots" / target.pool, RunStore(workspace.runs_dir), capacity)
