"""The worker of a model with state: rows of one sequence are queued one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from stoker.arena import Outcome
from stoker.device.batch import Batch
from stoker.device.lanes import Lane
from stoker.device.sequence_gate import Decision, SequenceGate, SequenceRow
from stoker.device.worker import Worker
from stoker.runtimes.sequence_states import StatefulRuntime
from stoker.sequence_steps import SEQUENCE_START

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
        self.planner.plans_lone_rows = True
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
