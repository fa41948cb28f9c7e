"""Simulates one model with several instances, whose concurrent batches slow each other down.

A batch that runs beside others proceeds at a fraction of its speed, and at full speed again when they have ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stoker.simulation.arrivals import Requests
from stoker.simulation.devices import Jitter
from stoker.simulation.planned import Planned
from stoker.simulation.world import NEVER_NS, PATIENCE_NS, BatchTimes, Outcome, RowTable, answered_ns

__all__ = ["run_instances"]


@dataclass(slots=True, eq=False)
class _Running:
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
    planned: Planned,
    jitter: Jitter,
    most: int,
    speed: Callable[[int], float],
) -> Outcome:
    """Simulate the requests with up to `most` concurrent batches until all are done.

    Args:
        requests: The requests, for one model.
        times: Batch times without concurrency.
        table: The rows of the requests.
        planned: The scheduler.
        jitter: Lengthens batch times.
        most: Limit of concurrent batches.
        speed: Returns the relative speed of a batch of this many rows beside one other; beside more it is lower.
    """
    arrivals = table.at_ns.tolist()
    done = np.full(len(arrivals), NEVER_NS)
    device = _Device(times, jitter, speed)
    begun = now_ns = 0
    last_ns = (arrivals[-1] if arrivals else 0) + PATIENCE_NS
    while now_ns <= last_ns:
        if begun < len(arrivals) and arrivals[begun] <= now_ns:
            start, begun = begun, bisect_right(arrivals, now_ns, begun)
            planned.arrive(0, start, begun)
        coming = _begin(device, planned, most, now_ns)
        if begun < len(arrivals) and len(device.running) < most:
            coming = min(coming, arrivals[begun])
        if not device.running and coming == NEVER_NS:
            break
        now_ns = device.go_on(now_ns, coming)
        for batch in device.ended():
            done[batch.rows] = now_ns
            planned.ran(0, len(batch.rows), now_ns - batch.began_ns, batch.beside)
    return Outcome(requests, answered_ns(requests, [table], [done]), [device.busy_ns], device.batches, now_ns)


def _begin(device: _Device, planned: Planned, most: int, now_ns: int) -> int:
    """Start the batches that the planner dispatches; returns when to look again if nothing arrives before."""
    while len(device.running) < most:
        planned.times.running = len(device.running)
        _, rows, look_again_ns = planned.next_batch(now_ns)
        if not len(rows):
            return NEVER_NS if look_again_ns is None else look_again_ns
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

    def go_on(self, now_ns: int, until_ns: int) -> int:
        """Advance to the end of the first batch, or to `until_ns` if that is earlier; returns the time reached."""
        others = len(self.running) - 1
        paces = [(batch, batch.speed / others if others else 1.0) for batch in self.running]
        ends_ns = [now_ns + max(1, round(batch.left_ns / pace)) for batch, pace in paces]
        until_ns = max(now_ns + 1, min([until_ns, *ends_ns]))
        for (batch, pace), end_ns in zip(paces, ends_ns, strict=True):
            batch.left_ns = 0 if end_ns <= until_ns else batch.left_ns - (until_ns - now_ns) * pace
        self.busy_ns += until_ns - now_ns if self.running else 0
        return until_ns

    def ended(self) -> list[_Running]:
        """Remove and return the batches that have ended."""
        over = [batch for batch in self.running if batch.left_ns < 1]
        self.running = [batch for batch in self.running if batch.left_ns >= 1]
        return over
