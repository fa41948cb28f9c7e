"""The choice of batch sizes that a device is prepared for, from measured times. Pure functions.

A larger size makes fuller use of the device, but its batches take longer. A further size between two others saves
padding, but costs memory and time at the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_GROWTH: Final = 0.0275
"""A larger size has to gain this share of throughput.

As loads on H200s measured ResNet-50, 64 rows do 1.8 to 2.4 % less than 128, and 48 rows 2.8 to 3 % less than 64."""
_SAVED: Final = 0.1
"""A size between two others has to save this share of the time of the larger one."""
_SHORT_NS: Final = 200_000
"""A batch on a GPU whose kernels do not fill it takes about as long as a launch."""
_SMALLEST_HALVED: Final = 32
"""From this size on, the size half-way to the next power of two is tried too."""


class BucketChoice(Struct, frozen=True):
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
    """Whether larger sizes than the largest timed one may pay.

    They may where it does more rows a second than sizes of up to half of it. They may also where it is short: then
    most of its time is that of beginning it, which varies.
    """
    largest = max(times_ns)
    if times_ns[largest] < _SHORT_NS:
        return True
    halves = [size / times_ns[size] for size in times_ns if size <= largest / 2]
    return largest / times_ns[largest] >= (1 + _GROWTH) * max(halves, default=0.0)


def choose_buckets(times_ns: Mapping[int, float], target_ms: float | None = None) -> BucketChoice:
    """Choose the sizes of batches.

    The largest is the smallest one near the highest throughput. A target only leaves out sizes that take
    longer than that alone. No further limit is needed: of the sizes that there are, the scheduler takes those with
    which most rows are in time.

    Args:
        times_ns: Times of batches by size, at least one.
        target_ms: The latency target.
    """
    sizes = sorted(times_ns)
    best = max(sizes, key=lambda size: size / times_ns[size])
    enough = best / times_ns[best] / (1 + _GROWTH)
    largest = next(size for size in sizes if size / times_ns[size] >= enough)
    reason = f"batches of {largest} do {_rate(largest, times_ns)} rows/s"
    if best != largest:
        reason += f", of {best} {_rate(best, times_ns)}"
    if target_ms is not None and times_ns[largest] > target_ms * 1e6:
        reason += f", but take longer than target_ms {target_ms:g}"
        in_time = (size for size in sizes if size < largest and times_ns[size] <= target_ms * 1e6)
        largest = max(in_time, default=sizes[0])
    return BucketChoice(without_spare_sizes(times_ns, largest), reason)


def without_spare_sizes(times_ns: Mapping[int, float], largest: int) -> tuple[int, ...]:
    """The sizes up to the largest that save a tenth of the time of the next larger one; the smallest one always."""
    sizes = sorted((size for size in times_ns if size < largest), reverse=True)
    kept = [largest]
    for size in sizes:
        if size == sizes[-1] or times_ns[size] <= (1 - _SAVED) * times_ns[kept[-1]]:
            kept.append(size)
    return tuple(reversed(kept))


def _rate(size: int, times_ns: Mapping[int, float]) -> str:
    return f"{size / times_ns[size] * 1e9:,.0f}"
