"""Which sizes of batches pay on a device that is prepared for each size: chosen from measured times. Pure functions.

A larger size makes fuller use of the device, but its batches take longer. A further size between two others saves
padding, but costs memory and time at the load.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

GROWTH: Final = 0.03
"""A larger size has to gain this share of throughput."""
_SAVED: Final = 0.1
"""A size between two others has to save this share of the time of the larger one."""
_SMALLEST_HALVED: Final = 32
"""From this size on, the size half-way to the next power of two is tried too."""
_GAP_NS: Final = 50_000
"""Time between two batches on a busy device."""
_LATE: Final = 0.01
"""The share of rows that may miss the target."""
_ARRIVING_ROWS: Final = 20_000
_STEPS: Final = 7
_BETTER: Final = 1.01
"""A larger size has to serve this many times the load of a smaller one within the target."""
_SEED: Final = 20261127


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """The chosen sizes.

    Attributes:
        buckets: Ascending.
        reason: Why the largest of them was chosen, for the log.
    """

    buckets: tuple[int, ...]
    reason: str


def candidate_sizes(max_batch_rows: int) -> tuple[int, ...]:
    """The sizes to time, ascending: powers of two, from 32 on also half-way between them, and `max_batch_rows`."""
    sizes = {max_batch_rows}
    power = 1
    while power < max_batch_rows:
        sizes |= {power} if power < _SMALLEST_HALVED else {power, power * 3 // 2}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= max_batch_rows))


def gains_by_growing(times_ns: Mapping[int, float]) -> bool:
    """Whether the largest timed size does more rows a second than sizes of up to half of it: larger ones may pay."""
    largest = max(times_ns)
    halves = [size / times_ns[size] for size in times_ns if size <= largest / 2]
    return largest / times_ns[largest] >= (1 + GROWTH) * max(halves, default=0.0)


def choose_buckets(times_ns: Mapping[int, float], target_ms: float | None = None) -> BucketChoice:
    """Choose the sizes of batches.

    The largest is the smallest one within 3 % of the highest throughput. With a target it may be smaller: the one
    that serves the highest load of Poisson arrivals with 99 % of the rows in time.

    Args:
        times_ns: Times of batches by size, at least one.
        target_ms: The latency target.
    """
    sizes = sorted(times_ns)
    best = max(sizes, key=lambda size: size / times_ns[size])
    enough = best / times_ns[best] / (1 + GROWTH)
    largest = next(size for size in sizes if size / times_ns[size] >= enough)
    reason = f"{largest} rows do {_rate(largest, times_ns)} rows/s"
    if best != largest:
        reason += f", {best} rows {_rate(best, times_ns)}"
    if target_ms is not None:
        within = largest_within_target({size: times_ns[size] for size in sizes if size <= largest}, target_ms)
        if within < largest:
            reason += f"; of larger batches than {within} rows more would miss target_ms {target_ms:g}"
            largest = within
    return BucketChoice(without_spare_sizes(times_ns, largest), reason)


def without_spare_sizes(times_ns: Mapping[int, float], largest: int) -> tuple[int, ...]:
    """The sizes up to the largest that save a tenth of the time of the next larger one; the smallest one always."""
    sizes = sorted((size for size in times_ns if size < largest), reverse=True)
    kept = [largest]
    for size in sizes:
        if size == sizes[-1] or times_ns[size] <= (1 - _SAVED) * times_ns[kept[-1]]:
            kept.append(size)
    return tuple(reversed(kept))


def largest_within_target(times_ns: Mapping[int, float], target_ms: float) -> int:
    """The size with whose batches, as the largest, most Poisson arrivals are answered in time; the smallest if none.

    Args:
        times_ns: Times of batches by size.
        target_ms: The latency target.
    """
    sizes = sorted(times_ns)
    target_ns = target_ms * 1e6
    arrivals = np.random.default_rng(_SEED).exponential(1.0, _ARRIVING_ROWS).cumsum()
    chosen, most = sizes[0], 0.0
    for place, largest in enumerate(sizes):
        buckets = sizes[: place + 1]

        def bears(rows_per_ns: float, buckets: Sequence[int] = buckets) -> bool:
            return _in_time((arrivals / rows_per_ns).tolist(), buckets, times_ns, target_ns)

        low, high = _BETTER * most, largest / times_ns[largest]
        if times_ns[largest] > target_ns or low >= high or (most and not bears(low)):
            continue
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if bears(middle) else (low, middle)
        chosen, most = largest, low
    return chosen


def _in_time(
    arrivals_ns: Sequence[float], buckets: Sequence[int], times_ns: Mapping[int, float], target_ns: float
) -> bool:
    """Whether 99 % of the rows are in time if each batch takes all that waits, up to the largest size."""
    most, free_ns, first, late = buckets[-1], 0.0, 0, 0
    while first < len(arrivals_ns):
        start_ns = max(free_ns, arrivals_ns[first])
        stop = min(bisect_right(arrivals_ns, start_ns, first), first + most)
        free_ns = start_ns + _GAP_NS + times_ns[buckets[bisect_left(buckets, stop - first)]]
        late += bisect_left(arrivals_ns, free_ns - target_ns, first, stop) - first
        if late > _LATE * len(arrivals_ns):
            return False
        first = stop
    return True


def _rate(size: int, times_ns: Mapping[int, float]) -> str:
    return f"{size / times_ns[size] * 1e9:,.0f}"
