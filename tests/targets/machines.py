"""The machines on which each engine has to pass `test_conformance.py`: a new engine is a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from stoker.targets.definitions import Target
from stoker.targets.engine import Engine
from stoker.targets.local import LocalEngine
from stoker.workspace import Workspace

__all__ = ["MACHINES", "Machine"]


@dataclass(frozen=True)
class Machine:
    """A kind of machine, and how an engine for it is made."""

    name: str
    engine: Callable[[Workspace], Engine]

    def __str__(self) -> str:
        return self.name


MACHINES = [Machine("local", lambda workspace: LocalEngine(Target("local"), workspace))]
