"""The states of sequences on a device: their places in memory, and how long they are kept.

See decision 42.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np

from stoker.runtimes.base import Runtime
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START

SequenceKey = tuple[int, int]
"""The first two words of the rows of a sequence, which identify it."""

_INITIAL: Final = 0
"""The place of the initial state in each pool, which is never overwritten."""


class _Entry:
    """A sequence: its place in the pools, the time of its last use, and whether a row of it has run."""

    __slots__ = ("has_begun", "place", "used_ns")

    def __init__(self, place: int, used_ns: int) -> None:
        self.place, self.used_ns, self.has_begun = place, used_ns, False


class BatchStates(NamedTuple):
    """The states from which the rows of a batch continue.

    Attributes:
        arrays: Per state tensor an array `[rows, *state_shape]`.
        entries: The sequence of each row; None for a row without one, whose state is not stored.
        flags: The flags of each row.
    """

    arrays: list[np.ndarray]
    entries: list[tuple[SequenceKey, _Entry] | None]
    flags: list[int]


class SequenceCounts(NamedTuple):
    """The numbers of sequences that are live, and that were started, ended by their callers, or expired."""

    live: int
    started: int
    ended: int
    expired: int


class SequenceStates:
    """States by sequence. Threads of several instances may load and store them at the same time.

    Args:
        initial: The initial value of each state tensor; dtype object stands for a state that is no tensor.
        most: The largest number of sequences.
        idle_ns: How long a sequence is kept after its last row.
    """

    def __init__(
        self, initial: Sequence[np.ndarray], most: int, idle_ns: int, clock_ns: Callable[[], int]
    ) -> None:
        # Pages of zeros take no memory until they are written.
        self._pools = [np.zeros((most + 1, *array.shape), array.dtype) for array in initial]
        for pool, array in zip(self._pools, initial, strict=True):
            # A single place instead of a slice would store the array of an object, not the object.
            pool[_INITIAL : _INITIAL + 1] = array
        self._objects = [pool for pool in self._pools if pool.dtype == object]
        self._free = list(range(most, _INITIAL, -1))
        self._idle_ns, self._clock_ns = idle_ns, clock_ns
        self._entries: OrderedDict[SequenceKey, _Entry] = OrderedDict()
        """The least recently used sequences come first."""
        self._lock = threading.Lock()
        self._started = self._ended = self._expired = 0

    @property
    def counts(self) -> SequenceCounts:
        """The counts of sequences."""
        return SequenceCounts(len(self._entries), self._started, self._ended, self._expired)

    @property
    def first_expiry_ns(self) -> int | None:
        """The time at which the next sequence expires; None without sequences."""
        with self._lock:
            first = next(iter(self._entries.values()), None)
        return None if first is None else first.used_ns + self._idle_ns

    def admit(self, key: SequenceKey, *, start: bool) -> Literal["unknown", "full"] | None:
        """Return why the next row of a sequence may not run; None if it may, and then call `release` after it.

        Args:
            start: Whether the row begins the sequence.
        """
        with self._lock:
            entry = self._entries.get(key)
            if not start:
                return None if entry is not None and entry.has_begun else "unknown"
            if entry is None:
                if not self._free:
                    return "full"
                self._entries[key] = _Entry(self._free.pop(), self._clock_ns())
            return None

    def release(self, key: SequenceKey) -> None:
        """Release an admitted row. Remove its sequence if no row of it has run."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not entry.has_begun:
                self._remove(key, entry)

    def discard(self, key: SequenceKey) -> None:
        """Remove a sequence whose progress is unknown."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._remove(key, entry)

    def load(self, words: np.ndarray | None, rows: int) -> BatchStates:
        """Return the states from which the rows of a batch continue.

        Args:
            words: The words of its rows, `int64[rows, 3]`; None if no row has a sequence.
        """
        row_words = [[0, 0, 0]] * rows if words is None else words.tolist()
        with self._lock:
            entries: list[tuple[SequenceKey, _Entry] | None] = []
            for first, second, _ in row_words:
                entry = self._entries.get((first, second)) if first else None
                entries.append(None if entry is None else ((first, second), entry))
            places = [
                _INITIAL if keyed is None or flags & SEQUENCE_START else keyed[1].place
                for keyed, (_, _, flags) in zip(entries, row_words, strict=True)
            ]
            arrays = [pool[places] for pool in self._pools]
        return BatchStates(arrays, entries, [flags for _, _, flags in row_words])

    def store(self, loaded: BatchStates, arrays: Sequence[np.ndarray]) -> None:
        """Store the states after a batch.

        Args:
            loaded: The result of `load` for the batch.
            arrays: Per state tensor an array `[rows, *state_shape]`.
        """
        with self._lock:
            now_ns = self._clock_ns()
            rows: list[int] = []
            places: list[int] = []
            for row, (keyed, flags) in enumerate(zip(loaded.entries, loaded.flags, strict=True)):
                # A sequence that was removed meanwhile may have begun again, with another entry.
                if keyed is None or self._entries.get(keyed[0]) is not keyed[1]:
                    continue
                key, entry = keyed
                self._started += bool(flags & SEQUENCE_START)
                if flags & SEQUENCE_END:
                    self._ended += 1
                    self._remove(key, entry)
                    continue
                entry.has_begun, entry.used_ns = True, now_ns
                self._entries.move_to_end(key)
                rows.append(row)
                places.append(entry.place)
            if rows:
                for pool, array in zip(self._pools, arrays, strict=True):
                    pool[places] = array[rows]

    def expire(self, busy: Container[SequenceKey]) -> None:
        """Remove sequences that were idle for too long, except those with rows in `busy`."""
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

    def _remove(self, key: SequenceKey, entry: _Entry) -> None:
        del self._entries[key]
        for pool in self._objects:
            # Otherwise the object would live until another sequence takes its place.
            pool[entry.place] = None
        self._free.append(entry.place)


class StatefulRuntime(Runtime, Protocol):
    """A runtime whose rows continue from the states of their sequences.

    The words of the rows, `int64[rows, 3]`, follow the inputs of its signature. Rows without words, or with zeros,
    begin with the initial state and store none, such as rows that warm a model up or fill a batch.

    Attributes:
        states: The states of all instances.
    """

    states: SequenceStates
