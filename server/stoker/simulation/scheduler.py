"""The server's admission control and batching in a simulation, called as the server calls them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct

from stoker.arena import Board
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import ServiceTimes, filled
from stoker.device.queue_report import classes_on_board, later_on_board, tiers_on_board
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import schedule
from stoker.errors import Refusal
from stoker.gateway.rows.admission import check_target
from stoker.keys.callers import CallerTerms
from stoker.simulation.workload import Jitter, Requests
from stoker.simulation.world import NEVER_NS, PATIENCE_NS, Batch, BatchTimes, Outcome, RowTable, answered_ns


class AdmissionControl:
    """The admission control of one model.

    Args:
        policy: The model's batching policy.
        chance: Random numbers from 0 to 1, for the retry times of refused requests.
        instances: Number of its batches that run concurrently.

    Attributes:
        board: The state of the device, as published to frontends.
    """

    def __init__(
        self, policy: BatchPolicy, chance: Callable[[], float] = lambda: 0.0, *, instances: int = 1
    ) -> None:
        self.board = Board()
        self.board.parallel = instances
        self.refused = 0
        self._policy = policy
        self._chance = chance
        self._callers: dict[int, CallerTerms] = {}
        self._costs_ns: list[int] = []
        # The expected end of each running batch.
        self._ends_ns: list[int] = []

    def publish(self, queue: RowQueue, now_ns: int, times: ServiceTimes, running_rows: int) -> None:
        """Publish the queue behind the batch that is dispatched now, if any.

        Args:
            queue: The queued rows.
            times: Expected batch times.
            running_rows: Rows of the batch of this model that is dispatched now; 0 if none is.
        """
        board, policy = self.board, self._policy
        costs_ns = times.costs_ns(policy.max_batch_rows, policy.buckets)
        if costs_ns is not self._costs_ns:
            self._costs_ns = costs_ns
            cap = board.cap = len(costs_ns) - 1
            board.costs_ns = [costs_ns[min(1 << place, cap)] for place in range((cap - 1).bit_length() + 1)]
        waiting = queue.waiting
        board.waiting = tiers_on_board(waiting)
        board.set_classes({place: [*words] for place, words in classes_on_board(waiting, policy).items()})
        board.written_ns = now_ns
        if running_rows:
            self._ends_ns.append(now_ns + costs_ns[running_rows])
        board.free_ns = min(self._ends_ns) if len(self._ends_ns) >= board.parallel else now_ns
        board.later = list(later_on_board(queue, board.free_ns, costs_ns[-1]))

    def end_batch(self) -> None:
        """Record that one of its batches has ended."""
        if self._ends_ns:
            self._ends_ns.remove(min(self._ends_ns))

    def admit(self, now_ns: int, rows: int, caller: int, tier: int, target_ns: int) -> Refusal | None:
        """Return why a request is refused; None if it is admitted."""
        board = self.board
        terms = self._callers.get(caller)
        if terms is None:
            weight = self._policy.weights.get(caller, 1.0)
            terms = self._callers[caller] = CallerTerms(str(caller), caller, weight=weight)
        board.ask(now_ns, rows)
        refusal = check_target(now_ns, rows, terms, tier, target_ns, board, self._chance)
        if refusal is None:
            board.take(rows, tier, caller, terms.weight, target_ns)
        else:
            self.refused += rows
        return refusal

    def admitted(self, table: RowTable, start: int, stop: int) -> np.ndarray:
        """Return a mask of the rows of admitted requests, `bool[rows]`."""
        part = slice(start, stop)
        begins = np.flatnonzero(table.position[part] == 0)
        admitted = np.fromiter(
            (
                self.admit(*request) is None
                for request in zip(
                    table.at_ns[part][begins].tolist(),
                    table.size[part][begins].tolist(),
                    table.caller[part][begins].tolist(),
                    table.tier[part][begins].tolist(),
                    table.due_ns[part][begins].tolist(),
                    strict=True,
                )
            ),
            bool,
            len(begins),
        )
        return np.repeat(admitted, table.size[part][begins])


_TIMEOUT_NS: Final = 60_000_000_000
"""The timeout of requests."""


class PlannedScheduler:
    """One model with targets, scheduled by the batching scheduler.

    Args:
        times: Initial knowledge of its batch times.
        admission: Its admission control; None admits everything.
    """

    def __init__(
        self,
        table: RowTable,
        policy: BatchPolicy,
        times: ServiceTimes | None = None,
        admission: AdmissionControl | None = None,
    ) -> None:
        self.admission = admission
        self.times = times or ServiceTimes(policy.buckets)
        self._table = table
        self._policy = policy
        self._deadline_ns = table.at_ns + _TIMEOUT_NS
        self._numbers = np.arange(len(table.at_ns), dtype=np.int32)
        # Without different callers or tiers, rows have no rank, as in a server without named keys and tiers.
        self._ranked = bool(table.caller.any() or (table.tier != 1).any())
        self._large = bool(len(table.size)) and int(table.size.max()) > 1
        self._queue = RowQueue()

    def arrive(self, start: int, stop: int) -> None:
        """Queue arrived rows that are admitted."""
        rows: slice | np.ndarray = slice(start, stop)
        table = self._table
        if self.admission is not None:
            admitted = self.admission.admitted(table, start, stop)
            if not admitted.all():
                rows = start + np.flatnonzero(admitted)
        self._queue.push(
            0,
            self._numbers[rows],
            table.position[rows],
            table.at_ns[rows],
            self._deadline_ns[rows],
            target_ns=table.due_ns[rows],
            size=table.size[rows] if self._large else None,
            tier=table.tier[rows] if self._ranked else None,
            caller=table.caller[rows] if self._ranked else None,
        )

    @property
    def refused_rows(self) -> int:
        """Number of refused rows."""
        return 0 if self.admission is None else self.admission.refused

    def next_batch(self, now_ns: int) -> Batch:
        """The batch that the batching scheduler dispatches."""
        planned = schedule(self._queue, now_ns, self._policy, self.times)
        lots = planned.batch
        if self.admission is not None:
            self.admission.publish(self._queue, now_ns, self.times, sum(lot.rows for lot in lots))
        if not lots:
            return Batch(self._numbers[:0], planned.check_again_ns)
        return Batch(lots[0].numbers if len(lots) == 1 else np.concatenate([lot.numbers for lot in lots]))

    def ran(self, rows: int, elapsed_ns: int, beside: int = 0) -> None:
        """Let the batching scheduler learn a batch's time."""
        if self.admission is not None:
            self.admission.end_batch()
        self.times.learn(filled(rows, self._policy.buckets), elapsed_ns, beside)


class _Running(Struct, eq=False):
    """A running batch.

    Attributes:
        rows: Indices of its rows in the table.
        began_ns: When it started.
        beside: Number of other batches running at that time.
        left_ns: Remaining time if it ran alone.
        speed: Its relative speed beside one other batch.
    """

    rows: np.ndarray
    began_ns: int
    beside: int
    left_ns: float
    speed: float


def run_instances(
    requests: Requests,
    times: BatchTimes,
    table: RowTable,
    planned: PlannedScheduler,
    jitter: Jitter,
    most: int,
    speed: Callable[[int], float],
) -> Outcome:
    """Simulate the requests with up to `most` concurrent batches until all are done.

    Args:
        requests: The requests, for one model.
        times: Batch times without concurrency.
        table: The rows of the requests.
        jitter: Lengthens batch times.
        most: Limit of concurrent batches.
        speed: Returns the relative speed of a batch by its rows beside one other batch; beside more it is lower.
    """
    arrivals = table.at_ns.tolist()
    done = np.full(len(arrivals), NEVER_NS)
    device = _Device(times, jitter, speed)
    begun = now_ns = 0
    last_ns = (arrivals[-1] if arrivals else 0) + PATIENCE_NS
    while now_ns <= last_ns:
        if begun < len(arrivals) and arrivals[begun] <= now_ns:
            start, begun = begun, bisect_right(arrivals, now_ns, begun)
            planned.arrive(start, begun)
        coming = _begin(device, planned, most, now_ns)
        if begun < len(arrivals) and len(device.running) < most:
            coming = min(coming, arrivals[begun])
        if not device.running and coming == NEVER_NS:
            break
        now_ns = device.advance(now_ns, coming)
        for batch in device.pop_ended():
            done[batch.rows] = now_ns
            planned.ran(len(batch.rows), now_ns - batch.began_ns, batch.beside)
    return Outcome(requests, answered_ns(requests, table, done), device.busy_ns, device.batches, now_ns)


def _begin(device: _Device, planned: PlannedScheduler, most: int, now_ns: int) -> int:
    """Start the batches that the scheduler dispatches; return when to call again if nothing arrives before."""
    while len(device.running) < most:
        planned.times.running = len(device.running)
        rows, check_again_ns = planned.next_batch(now_ns)
        if not len(rows):
            return NEVER_NS if check_again_ns is None else check_again_ns
        device.begin(rows, now_ns)
    return NEVER_NS


class _Device:
    """The running batches.

    Attributes:
        running: The running batches.
        batches: Number of batches started.
        busy_ns: How long at least one batch ran.
    """

    def __init__(self, times: BatchTimes, jitter: Jitter, speed: Callable[[int], float]) -> None:
        self.running: list[_Running] = []
        self.batches = self.busy_ns = 0
        self._times = times
        self._jitter = jitter
        self._speed = speed

    def begin(self, rows: np.ndarray, now_ns: int) -> None:
        """Start a batch."""
        alone_ns = self._times.batch_ns(len(rows)) * self._jitter.factor()
        self.running.append(_Running(rows, now_ns, len(self.running), alone_ns, self._speed(len(rows))))
        self.batches += 1

    def advance(self, now_ns: int, until_ns: int) -> int:
        """Advance to the end of the first batch, or to `until_ns` if that is earlier; return the new time."""
        others = len(self.running) - 1
        paces = [(batch, batch.speed / others if others else 1.0) for batch in self.running]
        ends_ns = [now_ns + max(1, round(batch.left_ns / pace)) for batch, pace in paces]
        until_ns = max(now_ns + 1, min([until_ns, *ends_ns]))
        for (batch, pace), end_ns in zip(paces, ends_ns, strict=True):
            batch.left_ns = 0 if end_ns <= until_ns else batch.left_ns - (until_ns - now_ns) * pace
        self.busy_ns += until_ns - now_ns if self.running else 0
        return until_ns

    def pop_ended(self) -> list[_Running]:
        """Remove and return the batches that have ended."""
        ended = [batch for batch in self.running if batch.left_ns < 1]
        self.running = [batch for batch in self.running if batch.left_ns >= 1]
        return ended
