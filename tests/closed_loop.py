"""Overload by callers that wait for their answers, and retry when the answer says so."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import numpy as np
from tests.simulated_device import Curve

from stoker.device.batch_decisions import BatchDecision, BatchPolicy
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import schedule
from stoker.gateway.rows.admission import retry_after_ms
from stoker.simulation.scheduler import AdmissionControl
from stoker.simulation.workload import Jitter

__all__ = ["ClosedLoop", "LoopCounts"]

_MS_NS = 1_000_000


@dataclass(slots=True)
class LoopCounts:
    """Counts of the requests' outcomes.

    Attributes:
        in_time: How many were answered in time.
        retries: How many came a second time, or more often.
        retries_refused: How many of these were refused again.
        refused: How many were refused, the first time or later.
        excess: How many more would have come than the device can do, without refusals.
        could: How many the device could have done.
    """

    in_time: int = 0
    retries: int = 0
    retries_refused: int = 0
    refused: int = 0
    excess: float = 0.0
    could: float = 0.0


@dataclass(slots=True)
class ClosedLoop:
    """Callers of requests of one row, each of whom waits for the answer, thinks, and asks again.

    So many that they would ask for `load` times what the device does in full batches if each answer took as long as
    its target.

    Attributes:
        curve: What batches take.
        target_ms: How long an answer is worth something.
        think_ms: How long callers think, on average.
        load: See above.
        seed: Of chance.
        counts: What has become of the requests since `begins_s`.
        begins_s: From when on is counted.
    """

    curve: Curve
    target_ms: float
    think_ms: float
    load: float = 2.0
    seed: int = 1
    begins_s: float = 1.0
    counts: LoopCounts = field(default_factory=LoopCounts)
    _coming: list[tuple[int, int, int]] = field(default_factory=list, init=False)

    def run(self, seconds: float) -> LoopCounts:
        """Let them ask for so many seconds."""
        chance = random.Random(self.seed)  # no secret
        jitter = Jitter(np.random.default_rng(self.seed), hiccups=0.0)
        cap, target_ns = self.curve.max_batch_rows, round(self.target_ms * _MS_NS)
        policy = BatchPolicy(cap, target_ms=self.target_ms, late="refuse")
        admission, queue, times = AdmissionControl(policy, chance.random), RowQueue(), ServiceTimes()
        callers = round(self.load * self.curve.peak_rows_per_s * (self.target_ms + self.think_ms) / 1000)
        lasts_ns = (self.target_ms + self.think_ms) * _MS_NS
        self._coming = [(int(chance.random() * lasts_ns), caller, 0) for caller in range(callers)]
        heapq.heapify(self._coming)
        could = self.curve.peak_rows_per_s * (seconds - self.begins_s)
        self.counts = LoopCounts(could=could, excess=(self.load - 1) * could)
        now_ns = 0
        while now_ns < seconds * 1e9:
            self._let_come(now_ns, admission, queue, target_ns)
            planned = schedule(queue, now_ns, policy, times)
            rows = sum(lot.rows for lot in planned.batch)
            admission.publish(queue, now_ns, times, rows)
            self._give_up(planned, now_ns, admission, target_ns, chance)
            if rows:
                elapsed_ns = round(self.curve.batch_ns(rows) * jitter.factor())
                now_ns += elapsed_ns
                times.learn(rows, elapsed_ns)
                admission.end_batch()
                self._answer(planned, now_ns, chance)
            else:
                nexts = [time for time in (planned.check_again_ns, *self._first()) if time is not None]
                now_ns = max(now_ns + 1, min(nexts))
        return self.counts

    def _first(self) -> list[int]:
        return [self._coming[0][0]] if self._coming else [1 << 62]

    def _counts(self, now_ns: int) -> bool:
        return now_ns >= self.begins_s * 1e9

    def _let_come(self, now_ns: int, admission: AdmissionControl, queue: RowQueue, target_ns: int) -> None:
        """Ask for those whose time has come."""
        taken: list[tuple[int, int]] = []
        while self._coming and self._coming[0][0] <= now_ns:
            at_ns, caller, tries = heapq.heappop(self._coming)
            refusal = admission.admit(at_ns, 1, 0, 1, at_ns + target_ns)
            if self._counts(at_ns):
                self.counts.retries += bool(tries)
                self.counts.refused += refusal is not None
                self.counts.retries_refused += bool(tries and refusal is not None)
            if refusal is None:
                taken.append((at_ns, caller))
            else:
                again_ns = at_ns + refusal.retry_after_ms * _MS_NS
                heapq.heappush(self._coming, (again_ns, caller, tries + 1))
        if taken:
            at = np.array([at_ns for at_ns, _ in taken])
            numbers = np.array([caller for _, caller in taken], np.int32)
            queue.push(0, numbers, np.zeros_like(at), at, at + (1 << 40), target_ns=at + target_ns)

    def _give_up(
        self,
        planned: BatchDecision,
        now_ns: int,
        admission: AdmissionControl,
        target_ns: int,
        chance: random.Random,
    ) -> None:
        """Give admitted requests that will be late their retry time."""
        board = admission.board
        for lot in planned.expired:
            for caller in lot.numbers.tolist():
                takes_ns = board.free_ns - now_ns + board.batch_ns(sum(board.waiting) + 1)
                wait_ms = retry_after_ms(max(0, takes_ns - target_ns), board, chance.random)
                heapq.heappush(self._coming, (now_ns + wait_ms * _MS_NS, caller, 1))

    def _answer(self, planned: BatchDecision, now_ns: int, chance: random.Random) -> None:
        for lot in planned.batch:
            assert lot.target_ns is not None, "pushed with targets"
            if self._counts(now_ns):
                self.counts.in_time += int(np.count_nonzero(lot.target_ns >= now_ns))
            for caller in lot.numbers.tolist():
                thinks_ns = round(chance.expovariate(1.0) * self.think_ms * _MS_NS)
                heapq.heappush(self._coming, (now_ns + thinks_ns, caller, 0))
