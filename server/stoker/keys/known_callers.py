"""The current callers of a workspace, for a process that follows changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from stoker.errors import InvalidSettings
from stoker.keys.callers import ONLY_DEFAULT, CallerTerms, read_callers
from stoker.keys.generation import FileGeneration, Generation

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KnownCallers"]


class KnownCallers:
    """The callers with named keys.

    Args:
        keys_dir: The workspace's folder of keys.
        generation: Changes when they do.

    Attributes:
        names: Caller names by number, including the default caller.
    """

    def __init__(self, keys_dir: Path, generation: Generation | None = None) -> None:
        self._keys_dir = keys_dir
        self._generation = FileGeneration(keys_dir) if generation is None else generation
        self._read_generation = -1
        self.names: Mapping[int, str] = ONLY_DEFAULT

    def changed(self) -> Collection[CallerTerms] | None:
        """Return all callers if any key has changed since the last call; else None."""
        generation = self._generation[0]
        if generation == self._read_generation or not self._keys_dir.is_dir():
            return None
        self._read_generation = generation
        try:
            callers = read_callers(self._keys_dir).values()
        except InvalidSettings:
            # The verifiers report this error, and refuse all named keys.
            return None
        self.names = {**ONLY_DEFAULT, **{terms.number: terms.name for terms in callers}}
        return callers
