"""Which engine serves which type of compute target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stoker.targets.definitions import LOCAL, Target
from stoker.targets.engine import Engine
from stoker.targets.local import LocalEngine
from stoker.workspace import Workspace

__all__ = ["engine_of"]

_ENGINES: Final[Mapping[str, Callable[[Target, Workspace], Engine]]] = {LOCAL: LocalEngine}


def engine_of(target: Target, workspace: Workspace) -> Engine:
    """Return a new engine of a compute target."""
    return _ENGINES[target.type](target, workspace)
