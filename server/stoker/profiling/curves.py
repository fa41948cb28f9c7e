"""What batches of a model take on a device, as it was measured: by their rows, alone and beside another one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from stoker.device.overlap import WORTH
from stoker.device.service_times import ServiceTimes

__all__ = ["MeasuredCurve", "Sizes", "Timed"]

Timed = Sequence[tuple[int, int]]
"""Rows and nanoseconds of batches."""

_LEAST_SPREAD: Final = 0.01
_MOST_SPREAD: Final = 0.5
# The median of the size of a normal variable, and how far its 90 % lie above that, in its standard deviations.
_MEDIAN: Final = 0.6745
_TO_NINETY: Final = 1.6449 - _MEDIAN


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """The time of batches by their rows.

    Attributes:
        sizes: The rows of the batches that were timed, ascending.
        alone_ns: What each takes that nothing disturbs, never falling.
        beside_ns: What each takes beside another one; empty where only one runs at a time.
        filled: Whether batches have these sizes only, and smaller ones are filled up to them.
        spread: How much longer they take now and then: standard deviation as a part of the time.
    """

    sizes: tuple[int, ...]
    alone_ns: tuple[int, ...]
    beside_ns: tuple[int, ...] = ()
    filled: bool = False
    spread: float = 0.03

    @classmethod
    def fitted(cls, alone: Timed, beside: Timed = (), *, filled: bool = False) -> Self:
        """The curve through what was timed.

        Args:
            alone: Batches that ran alone; several of each size.
            beside: Batches that ran beside one of the same size.
            filled: See above.
        """
        sizes = tuple(sorted({rows for rows, _ in alone}))
        times = ServiceTimes(sizes, quantile=0.5)
        for rows, elapsed_ns in alone:
            times.learn(rows, elapsed_ns)
        for rows, elapsed_ns in beside:
            times.learn(rows, elapsed_ns, beside=1)
        spread = _spread(alone)
        # Jitter only lengthens batches: without it they are shorter than their median.
        least = 1 / (1 + _MEDIAN * spread)
        return cls(
            sizes,
            tuple(round(times.expected_ns(size) * least) for size in sizes),
            tuple(round(times.expected_ns(size, 1) * least) for size in sizes) if beside else (),
            filled,
            round(spread, 3),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(
            tuple(value["rows"]),
            tuple(round(ms * 1e6) for ms in value["ms"]),
            tuple(round(ms * 1e6) for ms in value["ms_beside_another"]),
            value["filled"],
            value["spread"],
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it, times in milliseconds."""
        return {
            "rows": list(self.sizes),
            "ms": [round(elapsed_ns / 1e6, 4) for elapsed_ns in self.alone_ns],
            "ms_beside_another": [round(elapsed_ns / 1e6, 4) for elapsed_ns in self.beside_ns],
            "filled": self.filled,
            "spread": self.spread,
        }

    def alone(self, rows: int) -> float:
        """Nanoseconds of a batch of so many rows alone, on the line between those that were timed."""
        return _between(self.sizes, self.alone_ns, rows)

    def beside(self, rows: int) -> float:
        """Nanoseconds of a batch beside another one of its size; twice the time alone if only one runs at a time."""
        if not self.beside_ns:
            return 2 * self.alone(rows)
        return max(self.alone(rows), _between(self.sizes, self.beside_ns, rows))

    def gain(self, rows: int) -> float:
        """How much more two batches of so many rows do in a second at once than one behind the other."""
        return 2 * self.alone(rows) / self.beside(rows) - 1

    def at_once(self, instances: int, max_batch_rows: int) -> int:
        """How many batches a server lets run at once, which has measured the largest ones as this curve has."""
        return 2 if instances > 1 and self.gain(max_batch_rows) >= WORTH else 1

    def peak_rows_per_s(self, target_ms: float, max_batch_rows: int, instances: int = 1) -> float:
        """Rows in a second in the best batches that a target has time for; 0 if it has none for any.

        Args:
            target_ms: The target.
            max_batch_rows: Most rows in a batch.
            instances: Instances of the model.
        """
        beside = self.at_once(instances, max_batch_rows) > 1
        best = 0.0
        for size in {*self.sizes, max_batch_rows}:
            if size > max_batch_rows:
                continue
            for took_ns, batches in ((self.alone(size), 1), (self.beside(size), 2))[: 1 + beside]:
                if took_ns <= target_ms * 1e6:
                    best = max(best, batches * size / took_ns * 1e9)
        return best


@dataclass(frozen=True, slots=True)
class Sizes:
    """A curve where batches are filled up to certain sizes.

    Attributes:
        curve: The curve.
        buckets: The sizes, ascending; empty if batches run as they come.
    """

    curve: MeasuredCurve
    buckets: tuple[int, ...] = ()

    def batch_ns(self, rows: int) -> int:
        """The time of a batch of `rows`."""
        return round(self.curve.alone(self._size(rows)))

    def speed(self, rows: int) -> float:
        """At which part of its speed a batch of `rows` runs beside another one."""
        size = self._size(rows)
        return self.curve.alone(size) / self.curve.beside(size)

    def _size(self, rows: int) -> int:
        place = bisect_left(self.buckets, rows)
        return self.buckets[place] if place < len(self.buckets) else rows


def _between(sizes: tuple[int, ...], times_ns: tuple[int, ...], rows: int) -> float:
    if rows > sizes[-1]:
        return times_ns[-1] * rows / sizes[-1]
    return float(np.interp(rows, sizes, times_ns))


def _spread(timed: Timed) -> float:
    """How far nine of ten times lie above the middle one, in the middle of all sizes, as a standard deviation."""
    by_size: dict[int, list[int]] = {}
    for rows, elapsed_ns in timed:
        by_size.setdefault(rows, []).append(elapsed_ns)
    parts = [np.quantile(times, 0.9) / max(1.0, float(np.median(times))) - 1 for times in by_size.values()]
    return min(_MOST_SPREAD, max(_LEAST_SPREAD, float(np.median(parts)) / _TO_NINETY))
