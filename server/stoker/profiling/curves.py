"""Batch times by number of rows, fitted to timed batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
from msgspec import Struct

from stoker.device.batch_sizes import ServiceTimes
from stoker.device.overlap import WORTH

Timed = Sequence[tuple[int, int]]
"""Rows and nanoseconds of timed batches."""

_LEAST_SPREAD: Final = 0.01
_MOST_SPREAD: Final = 0.5
# The median of the absolute value of a normal variable, and the distance of its 90th percentile from that, in sigmas.
_MEDIAN: Final = 0.6745
_TO_NINETY: Final = 1.6449 - _MEDIAN


class MeasuredCurve(Struct, frozen=True):
    """Batch times by number of rows.

    Attributes:
        sizes: Numbers of rows of the timed batches, ascending.
        alone_ns: Undisturbed time of each size, never decreasing.
        beside_ns: Time of each size beside another batch; empty if only one batch runs at a time.
        filled: Whether only these sizes run, and smaller batches are padded to them.
        spread: Standard deviation of the random lengthening, relative to the time.
    """

    sizes: tuple[int, ...]
    alone_ns: tuple[int, ...]
    beside_ns: tuple[int, ...] = ()
    filled: bool = False
    spread: float = 0.03

    @classmethod
    def fit(cls, alone: Timed, beside: Timed = (), *, filled: bool = False) -> Self:
        """Fit a curve to timed batches.

        Args:
            alone: Batches that ran alone; several of each size.
            beside: Batches that ran beside another one of the same size.
            filled: Whether only these sizes run, and smaller batches are padded to them.
        """
        sizes = tuple(sorted({rows for rows, _ in alone}))
        times = ServiceTimes(sizes, quantile=0.5)
        for rows, elapsed_ns in alone:
            times.learn(rows, elapsed_ns)
        for rows, elapsed_ns in beside:
            times.learn(rows, elapsed_ns, beside=1)
        spread = _spread(alone)
        # Jitter only lengthens batches: the undisturbed time is below the median.
        least = 1 / (1 + _MEDIAN * spread)
        return cls(
            sizes,
            tuple(round(times.expected_ns(size) * least) for size in sizes),
            tuple(round(times.expected_ns(size, 1) * least) for size in sizes) if beside else (),
            filled,
            round(spread, 3),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types, with times in milliseconds."""
        return {
            "rows": list(self.sizes),
            "ms": [round(elapsed_ns / 1e6, 4) for elapsed_ns in self.alone_ns],
            "ms_beside_another": [round(elapsed_ns / 1e6, 4) for elapsed_ns in self.beside_ns],
            "filled": self.filled,
            "spread": self.spread,
        }

    def alone(self, rows: int) -> float:
        """Time of a batch alone in nanoseconds, interpolated between the timed sizes."""
        return _between(self.sizes, self.alone_ns, rows)

    def beside(self, rows: int) -> float:
        """Time in ns of a batch beside another one of its size; twice the time alone if one runs at a time."""
        if not self.beside_ns:
            return 2 * self.alone(rows)
        return max(self.alone(rows), _between(self.sizes, self.beside_ns, rows))

    def gain(self, rows: int) -> float:
        """Throughput of two concurrent batches of this many rows, relative to two consecutive ones."""
        return 2 * self.alone(rows) / self.beside(rows) - 1

    def at_once(self, instances: int, max_batch_rows: int) -> int:
        """Number of concurrent batches that a server would choose from these measurements of its largest batches."""
        return 2 if instances > 1 and self.gain(max_batch_rows) >= WORTH else 1

    def peak_rows_per_s(self, target_ms: float, max_batch_rows: int, instances: int = 1) -> float:
        """Throughput in rows per second of the best batches within a target; 0 if no batch fits.

        Args:
            max_batch_rows: Limit of rows per batch.
            instances: Number of instances of the model.
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


class PaddedCurve(Struct, frozen=True):
    """A curve with batches padded to certain sizes.

    Attributes:
        buckets: The sizes, ascending; empty for no padding.
    """

    curve: MeasuredCurve
    buckets: tuple[int, ...] = ()

    def batch_ns(self, rows: int) -> int:
        """The time of a batch of `rows`."""
        return round(self.curve.alone(self._size(rows)))

    def speed(self, rows: int) -> float:
        """The relative speed of a batch of `rows` beside another one."""
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
    """Estimate the relative deviation of batch times from their median and 90th percentile, over all sizes."""
    by_size: dict[int, list[int]] = {}
    for rows, elapsed_ns in timed:
        by_size.setdefault(rows, []).append(elapsed_ns)
    parts = [np.quantile(times, 0.9) / max(1.0, float(np.median(times))) - 1 for times in by_size.values()]
    return min(_MOST_SPREAD, max(_LEAST_SPREAD, float(np.median(parts)) / _TO_NINETY))
