"""Schedulers of other systems, after their papers and sources, for comparison: in order of arrival, one model.

Nexus, Clockwork and Symphony are given the exact batch times plus an allowance of 8 %; they do not learn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from stoker.simulation.devices import Curve
from stoker.simulation.world import Batch, RowTable

__all__ = ["BASELINES", "Clipper", "Clockwork", "Fifo", "Nexus", "Symphony"]

_ALLOWANCE: Final = 1.08


class Fifo:
    """Triton and TF Serving: batches in order of arrival; rows whose target has passed are dropped."""

    def __init__(self, table: RowTable, curve: Curve) -> None:
        self.due = table.due_ns.tolist()
        self.head = self.tail = 0
        self.cap = curve.max_batch_rows
        self.costs = [0, *(round(_ALLOWANCE * curve.batch_ns(rows)) for rows in range(1, self.cap + 1))]

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Queue arrived rows."""
        del model, start
        self.tail = stop

    def next_batch(self, now_ns: int) -> Batch:
        """Return the next batch."""
        rows, look_again_ns = self.batch_rows(now_ns)
        start, self.head = self.head, self.head + rows
        return Batch(0, np.arange(start, self.head), look_again_ns)

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """Drop late rows; returns the number of rows to dispatch, and when to look again if that is 0."""
        self.drop_until(now_ns)
        return min(self.cap, self.tail - self.head), None

    def drop_until(self, time_ns: int) -> None:
        """Drop rows from the head of the queue whose targets are before a time."""
        while self.head < self.tail and self.due[self.head] < time_ns:
            self.head += 1

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Record that a batch has ended."""
        del model, rows, elapsed_ns


class Clipper(Fifo):
    """Clipper (NSDI 2017): like `Fifo`, but the batch cap grows by one while batches are within the target."""

    def __init__(self, table: RowTable, curve: Curve) -> None:
        super().__init__(table, curve)
        self._objective_ns = int((table.due_ns - table.at_ns).min()) if len(table.at_ns) else 0
        self._most, self.cap = curve.max_batch_rows, 1

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Adapt the cap: additive increase, multiplicative decrease."""
        del model
        if elapsed_ns > self._objective_ns:
            self.cap = max(1, int(self.cap * 0.9))
        elif rows >= self.cap:
            self.cap = min(self._most, self.cap + 1)


class Nexus(Fifo):
    """Nexus (SOSP 2019): batches take at most half of the target; late rows at the head are dropped."""

    def __init__(self, table: RowTable, curve: Curve) -> None:
        super().__init__(table, curve)
        target_ns = int((table.due_ns - table.at_ns).min()) if len(table.at_ns) else 0
        self._window = max(1, bisect_right(self.costs, target_ns // 2) - 1)

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """The first window of rows whose head is in time."""
        while self.head < self.tail:
            rows = min(self._window, self.tail - self.head)
            if self.due[self.head] >= now_ns + self.costs[rows]:
                # A cap below the largest batch size only determines how many rows are dropped.
                most = bisect_right(self.costs, self.due[self.head] - now_ns) - 1
                return min(most, self.cap, self.tail - self.head), None
            self.head += 1
        return 0, None


class Clockwork(Fifo):
    """Clockwork (OSDI 2020): the oldest row that can be in time, in the largest batch that its target allows."""

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """The batch of the oldest row."""
        self.drop_until(now_ns + self.costs[1])
        if self.head == self.tail:
            return 0, None
        most = bisect_right(self.costs, self.due[self.head] - now_ns) - 1
        return min(most, self.tail - self.head), None


class Symphony(Nexus):
    """Symphony (arXiv 2308.07470): drops like Nexus, but dispatches when one more row would make the batch late."""

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """The batch, if it is due."""
        rows, _ = super().batch_rows(now_ns)
        if not rows or rows == self.cap:
            return rows, None
        leaves_ns = self.due[self.head] - self.costs[rows + 1]
        return (0, leaves_ns) if now_ns < leaves_ns else (rows, None)


BASELINES: Final[Mapping[str, Callable[[RowTable, Curve], Fifo]]] = {
    "Triton": Fifo,
    "Clipper": Clipper,
    "Nexus": Nexus,
    "Clockwork": Clockwork,
    "Symphony": Symphony,
}
"""Schedulers by name."""
