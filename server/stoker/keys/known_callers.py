"""The callers of a workspace, for a process that follows their changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from stoker.errors import InvalidSettings
from stoker.keys.callers import ONLY_DEFAULT, CallerTerms, read_callers
from stoker.keys.keyring import map_generation

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KnownCallers"]


class KnownCallers:
    """Who has a named key now.

    Args:
        keys_dir: The workspace's folder of keys.

    Attributes:
        names: Their names by their numbers, that of callers without a named key among them.
    """

    def __init__(self, keys_dir: Path) -> None:
        self._keys_dir = keys_dir
        self._generation: memoryview | None = None
        self._read_generation = -1
        self.names: Mapping[int, str] = ONLY_DEFAULT

    def changed(self) -> Collection[CallerTerms] | None:
        """All of them, if any key has changed since this was asked before; else None."""
        if self._generation is None:
            try:
                self._generation = map_generation(self._keys_dir)
            except OSError:
                # No key has been made yet, or there is no descriptor for it now.
                return None
        generation = self._generation[0]
        if generation == self._read_generation:
            return None
        self._read_generation = generation
        try:
            callers = read_callers(self._keys_dir).values()
        except InvalidSettings:
            # Those who check the keys say so, and refuse all of these callers.
            return None
        self.names = {**ONLY_DEFAULT, **{terms.number: terms.name for terms in callers}}
        return callers
