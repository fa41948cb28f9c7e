"""One model with several instances in a simulated world: batches that run beside each other, and slow each other.

A batch that runs beside others goes on at a part of its speed, and at its full speed again when they have ended.
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
    """A batch on the device.

    Attributes:
        rows: Its rows, by their place in the table.
        began_ns: When it began.
        beside: How many others ran then.
        left_ns: What it would take from now on if it ran alone.
        speed: At which part of that it goes on beside one more.
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
    """Let the requests come, and up to `most` batches run at once, until nobody waits.

    Args:
        requests: The requests, for one model.
        times: What its batches take alone.
        table: Its rows.
        planned: What decides.
        jitter: How much longer batches take.
        most: Batches that run at once.
        speed: For the rows of a batch, at which part of its speed it runs beside one other; beside more it is less.
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
    """Let batches begin that the planner lets go; returns when to look again, if nothing arrives before."""
    while len(device.running) < most:
        planned.times.running = len(device.running)
        _, rows, look_again_ns = planned.next_batch(now_ns)
        if not len(rows):
            return NEVER_NS if look_again_ns is None else look_again_ns
        device.begin(rows, now_ns)
    return NEVER_NS


class _Device:
    """The batches that run.

    Attributes:
        running: These.
        batches: How many have begun.
        busy_ns: How long at least one ran.
    """

    def __init__(self, times: BatchTimes, jitter: Jitter, speed: Callable[[int], float]) -> None:
        self.running: list[_Running] = []
        self.batches = self.busy_ns = 0
        self._times = times
        self._jitter = jitter
        self._speed = speed

    def begin(self, rows: np.ndarray, now_ns: int) -> None:
        """Let a batch begin."""
        alone_ns = self._times.batch_ns(len(rows)) * self._jitter.factor()
        self.running.append(_Running(rows, now_ns, len(self.running), alone_ns, self._speed(len(rows))))
        self.batches += 1

    def go_on(self, now_ns: int, until_ns: int) -> int:
        """Let batches run until the first of them ends, or until a time if that is earlier; returns when that is."""
        others = len(self.running) - 1
        paces = [(batch, batch.speed / others if others else 1.0) for batch in self.running]
        ends_ns = [now_ns + max(1, round(batch.left_ns / pace)) for batch, pace in paces]
        until_ns = max(now_ns + 1, min([until_ns, *ends_ns]))
        for (batch, pace), end_ns in zip(paces, ends_ns, strict=True):
            batch.left_ns = 0 if end_ns <= until_ns else batch.left_ns - (until_ns - now_ns) * pace
        self.busy_ns += until_ns - now_ns if self.running else 0
        return until_ns

    def ended(self) -> list[_Running]:
        """The batches that have ended, which run no more."""
        over = [batch for batch in self.running if batch.left_ns < 1]
        self.running = [batch for batch in self.running if batch.left_ns >= 1]
        return over
