"""The worker of a model with state: rows of one sequence are queued one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from stoker.arena import Outcome
from stoker.device.lanes import Batch, Lane
from stoker.device.worker import Worker
from stoker.runtimes.sequence_states import SequenceKey, SequenceStates, StatefulRuntime
from stoker.sequence_steps import SEQUENCE_START

# Which row of each sequence may run: one at a time, in order of arrival.
#
# A row is not queued before the previous row of its sequence has been handed back, whatever its outcome. So no batch
# has two rows of a sequence, and each row continues from the state that the previous one left. The scheduler knows
# nothing of sequences.


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

        Sequences of which a row was running or queued end: whether that row has changed the state can no longer be
        told.
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


_REFUSED: Final = {"unknown": Outcome.UNKNOWN_SEQUENCE, "full": Outcome.TOO_MANY_SEQUENCES}


class _SequenceLane(Lane):
    """A lane that reports which rows are handed back, whatever their outcome; on any thread."""

    def __init__(self, lane: Lane, on_back: Callable[[Lane, np.ndarray], None]) -> None:
        super().__init__(lane.arena, lane.doorbell)
        self._on_back = on_back

    def send(self, numbers: np.ndarray) -> None:
        """Hand rows back, and report them."""
        # Reported before the frontend hears of it, which may use the row numbers again at once.
        self._on_back(self, numbers)
        super().send(numbers)


class SequenceWorker(Worker):
    """Serves a model with state; see `SequenceGate`."""

    def __init__(self, runtime: StatefulRuntime, *arguments: Any, **options: Any) -> None:
        """Make the first instance; see `Worker`."""
        super().__init__(runtime, *arguments, **options)
        self._states = runtime.states
        self.gate: SequenceGate[Lane] = SequenceGate(self._states)
        self._counted = self._states.counts
        # Filled by the threads of all instances, emptied by the leader.
        self._back: deque[tuple[Lane, np.ndarray]] = deque()

    def add_lane(self, lane: Lane) -> None:
        """Serve a frontend's rows from now on; may be called on any thread."""
        super().add_lane(_SequenceLane(lane, self._note_back))

    def _note_back(self, lane: Lane, numbers: np.ndarray) -> None:
        self._back.append((lane, numbers))
        if self._occupancy.several:
            # The leader may be asleep.
            self.doorbells.wake()

    def _take_in(self, fd: int, lane: Lane, numbers: np.ndarray, queued: np.ndarray) -> None:
        del fd, queued
        # A row number may have been handed back and used for another row by now.
        self._take_back()
        words = lane.arena.inputs[-1][numbers].tolist()
        self._carry_out(
            decision
            for number, (first, second, flags) in zip(numbers.tolist(), words, strict=True)
            for decision in self.gate.arrive(
                SequenceRow(lane, number, (first, second), bool(flags & SEQUENCE_START))
            )
        )

    def _carry_out(self, decisions: Iterable[Decision[Lane]]) -> bool:
        """Queue rows that may run, and hand back those that may not; returns whether any was queued."""
        queued: dict[int, tuple[Lane, list[int]]] = {}
        for row, refusal in decisions:
            if refusal is None:
                queued.setdefault(id(row.lane), (row.lane, []))[1].append(row.number)
            else:
                row.lane.hand_back(np.array([row.number], np.uint32), _REFUSED[refusal], self._clock_ns())
        for lane, listed in queued.values():
            numbers = np.array(listed, np.uint32)
            super()._take_in(lane.doorbell.fileno(), lane, numbers, lane.arena.queued[numbers])
        return bool(queued)

    def _drop(self, fd: int) -> None:
        lane = self.doorbells.lanes[fd]
        self._take_back()
        super()._drop(fd)
        self._carry_out(self.gate.drop_lane(lane))

    def wait_s(self, most_s: float | None) -> float | None:
        """How long the leader may sleep if no row arrives: no longer than until a sequence expires."""
        wait_s, due_ns = super().wait_s(most_s), self._states.first_expiry_ns
        if due_ns is None:
            return wait_s
        left_s = max(0, due_ns - self._clock_ns()) / 1e9
        return left_s if wait_s is None else min(wait_s, left_s)

    def _lead(self, most_s: float | None) -> Any:
        self._let_pass()
        todo = super()._lead(most_s)
        if not isinstance(todo, Batch):
            # A row that was handed back unrun may let others pass, for which no doorbell rings.
            self._let_pass()
        return todo

    def _take_back(self) -> bool:
        """Queue the rows that were waiting for handed-back rows; returns whether there were any."""
        decisions: list[Decision[Lane]] = []
        while self._back:
            lane, numbers = self._back.popleft()
            for number in numbers.tolist():
                decisions += self.gate.hand_back(lane, number)
        return self._carry_out(decisions)

    def _let_pass(self) -> None:
        """Queue the rows whose turn has come, and end idle sequences."""
        if self._take_back():
            self._check_again_ns = 0
        self._states.expire(self.gate.busy)
        counts, before = self._states.counts, self._counted
        if counts != before:
            more = (now - then for now, then in zip(counts[1:], before[1:], strict=True))
            self._metrics.count_sequences(counts.live, *more)
            self._counted = counts
