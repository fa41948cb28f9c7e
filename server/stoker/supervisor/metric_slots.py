"""The slots of versions in the metrics."""

from __future__ import annotations

from stoker.errors import InvalidSettings
from stoker.metrics.layout import MODEL_SLOTS


class Slots:
    """The slots of the metrics: each version keeps its own, so that its counters continue when it is loaded again.

    When all slots are taken, the one whose version was unloaded longest ago is reused.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[str, int], int] = {}
        self._free: list[tuple[str, int]] = []

    def keep(self, name: str, version: int, slot: int) -> None:
        """Record the slot with which a version was prepared, before any was taken."""
        self._slots[name, version] = slot

    def has(self, name: str, version: int) -> bool:
        """Whether a version has a slot."""
        return (name, version) in self._slots

    def acquire(self, name: str, version: int) -> tuple[int, tuple[str, int] | None]:
        """Return the slot for a version, and which other version has lost it."""
        key = (name, version)
        if key in self._slots:
            if key in self._free:
                self._free.remove(key)
            return self._slots[key], None
        unused = min(set(range(MODEL_SLOTS)).difference(self._slots.values()), default=None)
        if unused is not None:
            self._slots[key] = unused
            return unused, None
        if not self._free:
            raise InvalidSettings(
                f"at most {MODEL_SLOTS} versions of models can be served at once, and so many are; unload one first"
            )
        loser = self._free.pop(0)
        self._slots[key] = self._slots.pop(loser)
        return self._slots[key], loser

    def release(self, name: str, version: int) -> None:
        """Mark the slot of an unloaded version as one that may be reused when no other is free."""
        key = (name, version)
        if key in self._slots and key not in self._free:
            self._free.append(key)
