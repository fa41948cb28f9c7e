"""The states of a model's sequences in one device process.

The state of a sequence is where an answer has left it: a request whose rows were not run, or failed, has changed
nothing. All arrays of one state tensor are one pool, so that a batch takes its states, and leaves them, in one step.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np

from stoker.runtimes.base import Runtime
from stoker.sequences import END, START

__all__ = ["KeepsStates", "Key", "SequenceCounts", "SequenceStates", "Taken"]

Key = tuple[int, int]
"""What names a sequence: the first two of the words of its rows."""

_INITIAL: Final = 0
"""The place in each pool that is never written: what a sequence begins with."""


class _Entry:
    """A sequence: its place in the pools, when it was last used, and whether a row of it has been run."""

    __slots__ = ("begun", "place", "used_ns")

    def __init__(self, place: int, used_ns: int) -> None:
        self.place, self.used_ns, self.begun = place, used_ns, False


class Taken(NamedTuple):
    """The states that a batch has taken.

    Attributes:
        arrays: Per state tensor an array `[rows, *state_shape]`.
        entries: Whose the rows are; None for those of no sequence, which leave nothing.
        flags: What each row says.
    """

    arrays: list[np.ndarray]
    entries: list[tuple[Key, _Entry] | None]
    flags: list[int]


class SequenceCounts(NamedTuple):
    """How many sequences there are, have been started, ended by their callers, and were idle for too long."""

    live: int
    started: int
    ended: int
    expired: int


class SequenceStates:
    """States by sequence. Threads of several instances may take and leave them at the same time.

    Args:
        initial: Per state tensor what a sequence begins with; one of dtype object is a state that is no tensor.
        most: How many sequences there are at most.
        idle_ns: How long one is kept after its last row.
        clock_ns: The time.
    """

    def __init__(
        self, initial: Sequence[np.ndarray], most: int, idle_ns: int, clock_ns: Callable[[], int]
    ) -> None:
        # Memory that is not written is none.
        self._pools = [np.zeros((most + 1, *array.shape), array.dtype) for array in initial]
        for pool, array in zip(self._pools, initial, strict=True):
            # A slice: an array of one object would be stored as what it is.
            pool[_INITIAL : _INITIAL + 1] = array
        self._objects = [pool for pool in self._pools if pool.dtype == object]
        self._free = list(range(most, _INITIAL, -1))
        self._idle_ns, self._clock_ns = idle_ns, clock_ns
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        """Those first that were used longest ago."""
        self._lock = threading.Lock()
        self._started = self._ended = self._expired = 0

    @property
    def counts(self) -> SequenceCounts:
        """What is counted."""
        return SequenceCounts(len(self._entries), self._started, self._ended, self._expired)

    @property
    def first_expiry_ns(self) -> int | None:
        """When the next sequence has been idle for too long; None if there is none."""
        with self._lock:
            first = next(iter(self._entries.values()), None)
        return None if first is None else first.used_ns + self._idle_ns

    def admit(self, key: Key, *, start: bool) -> Literal["unknown", "full"] | None:
        """Say whether the next row of a sequence may run: None if so, and then `settle` is to follow.

        Args:
            key: The sequence.
            start: Whether the row begins it.
        """
        with self._lock:
            entry = self._entries.get(key)
            if not start:
                return None if entry is not None and entry.begun else "unknown"
            if entry is None:
                if not self._free:
                    return "full"
                self._entries[key] = _Entry(self._free.pop(), self._clock_ns())
            return None

    def settle(self, key: Key) -> None:
        """Take note that an admitted row is over; a sequence of which none was run has not begun."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not entry.begun:
                self._remove(key, entry)

    def forget(self, key: Key) -> None:
        """End a sequence of which nobody knows how far it has come."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._remove(key, entry)

    def take(self, words: np.ndarray | None, rows: int) -> Taken:
        """Return the states that a batch goes on from.

        Args:
            words: What its rows say of their sequences, `int64[rows, 3]`; None if all are of none.
            rows: How many rows it has.
        """
        said = [[0, 0, 0]] * rows if words is None else words.tolist()
        with self._lock:
            entries: list[tuple[Key, _Entry] | None] = []
            for first, second, _ in said:
                entry = self._entries.get((first, second)) if first else None
                entries.append(None if entry is None else ((first, second), entry))
            places = [
                _INITIAL if one is None or flags & START else one[1].place
                for one, (_, _, flags) in zip(entries, said, strict=True)
            ]
            arrays = [pool[places] for pool in self._pools]
        return Taken(arrays, entries, [flags for _, _, flags in said])

    def leave(self, taken: Taken, arrays: Sequence[np.ndarray]) -> None:
        """Keep the states that a batch has come to.

        Args:
            taken: What it went on from.
            arrays: Per state tensor an array `[rows, *state_shape]`.
        """
        with self._lock:
            now_ns = self._clock_ns()
            rows: list[int] = []
            places: list[int] = []
            for row, (one, flags) in enumerate(zip(taken.entries, taken.flags, strict=True)):
                # One that was forgotten meanwhile may have begun anew.
                if one is None or self._entries.get(one[0]) is not one[1]:
                    continue
                key, entry = one
                self._started += bool(flags & START)
                if flags & END:
                    self._ended += 1
                    self._remove(key, entry)
                    continue
                entry.begun, entry.used_ns = True, now_ns
                self._entries.move_to_end(key)
                rows.append(row)
                places.append(entry.place)
            if rows:
                for pool, array in zip(self._pools, arrays, strict=True):
                    pool[places] = array[rows]

    def expire(self, busy: Container[Key]) -> None:
        """End the sequences that have been idle for too long, but for those of which rows are here."""
        with self._lock:
            now_ns = self._clock_ns()
            while self._entries:
                key, entry = next(iter(self._entries.items()))
                if entry.used_ns + self._idle_ns > now_ns:
                    return
                if key in busy:
                    entry.used_ns = now_ns
                    self._entries.move_to_end(key)
                else:
                    self._expired += 1
                    self._remove(key, entry)

    def _remove(self, key: Key, entry: _Entry) -> None:
        del self._entries[key]
        for pool in self._objects:
            # What an object holds is not to wait for the next sequence that takes its place.
            pool[entry.place] = None
        self._free.append(entry.place)


class KeepsStates(Runtime, Protocol):
    """A runtime whose rows go on from the states of their sequences.

    Behind the inputs of its signature it is given what the rows say of their sequences, `int64[rows, 3]`. Where that
    is missing, or zeros, rows begin with the initial state and leave none: so do those that warm a model up, or fill
    a batch.

    Attributes:
        states: The states, of all instances.
    """

    states: SequenceStates
