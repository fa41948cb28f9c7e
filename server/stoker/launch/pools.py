"""Which slots the runs of a compute target share, and what a run asks of them where it says nothing."""

from __future__ import annotations

from stoker.launch.slots import Slots
from stoker.runs.store import RunStore
from stoker.targets.definitions import Target
from stoker.workspace import Workspace

__all__ = ["slots_of"]


def slots_of(target: Target, workspace: Workspace) -> Slots | None:
    """The slots of a target; None where it has none, or somebody else keeps them."""
    capacity = target.capacity
    if capacity is None:
        return None
    return Slots(workspace.root / "slots" / target.pool, RunStore(workspace.runs_dir), capacity)
