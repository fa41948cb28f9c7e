"""Decides which row of each sequence may run: one at a time, in order of arrival.

A row is not queued before the previous row of its sequence has been handed back, whatever its outcome. So no batch
has two rows of a sequence, and each row continues from the state that the previous one left. The scheduler knows
nothing of sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Generic, Literal, NamedTuple, TypeVar

from stoker.runtimes.sequence_states import SequenceKey, SequenceStates

_Lane = TypeVar("_Lane")


class SequenceRow(NamedTuple, Generic[_Lane]):
    """A row of a sequence.

    Attributes:
        lane: The lane that it came from.
        number: Its row number there.
        key: The sequence's key.
        start: Whether it starts the sequence.
    """

    lane: _Lane
    number: int
    key: SequenceKey
    start: bool


Decision = tuple[SequenceRow[_Lane], Literal["unknown", "full"] | None]
"""A row that is decided on, and the reason if it may not run; None if it may."""


class SequenceGate(Generic[_Lane]):
    """The rows of sequences in a device process. One thread at a time may use it.

    Args:
        states: The states of the sequences.
    """

    def __init__(self, states: SequenceStates) -> None:
        self._states = states
        self._lines: dict[SequenceKey, deque[SequenceRow[_Lane]]] = {}
        """The rows of each sequence that are here; the first one runs, or waits to run."""
        self._running: dict[tuple[_Lane, int], SequenceKey] = {}

    @property
    def busy(self) -> Container[SequenceKey]:
        """The sequences that have rows here."""
        return self._lines

    def arrive(self, row: SequenceRow[_Lane]) -> list[Decision[_Lane]]:
        """Add a row; returns the rows that are decided on now."""
        line = self._lines.get(row.key)
        if line is not None:
            line.append(row)
            return []
        self._lines[row.key] = deque([row])
        return self._next(row.key)

    def hand_back(self, lane: _Lane, number: int) -> list[Decision[_Lane]]:
        """Record that a row is finished; returns the rows that are decided on now.

        Rows that were refused are not in the gate.
        """
        key = self._running.pop((lane, number), None)
        if key is None:
            return []
        self._states.release(key)
        self._lines[key].popleft()
        return self._next(key)

    def drop_lane(self, lane: _Lane) -> list[Decision[_Lane]]:
        """Remove the rows of a lane whose frontend has gone.

        A sequence ends if a row of it was running or queued: nobody knows whether that row has changed the state.
        """
        decisions = []
        for key, line in list(self._lines.items()):
            first, *others = line
            kept = [row for row in others if row.lane is not lane]
            if first.lane is not lane:
                self._lines[key] = deque([first, *kept])
                continue
            del self._running[lane, first.number]
            self._states.discard(key)
            self._lines[key] = deque(kept)
            decisions += self._next(key)
        return decisions

    def _next(self, key: SequenceKey) -> list[Decision[_Lane]]:
        """Let the first row of a sequence run that may; the refused ones before it are returned too."""
        line, decisions = self._lines[key], []
        while line:
            row = line[0]
            refusal = self._states.admit(key, start=row.start)
            decisions.append((row, refusal))
            if refusal is None:
                self._running[row.lane, row.number] = key
                return decisions
            line.popleft()
        del self._lines[key]
        return decisions
