"""Curves of batch times that are lines, for tests of profiling."""

from __future__ import annotations

from stoker.profiling.curves import MeasuredCurve

SIZES = (1, 4, 16)


def line(batch_ms: float, row_ms: float, gain: float | None = None, *, filled: bool = False) -> MeasuredCurve:
    """A curve with a time for the batch and one for each row; two at once have this gain of throughput."""
    alone = tuple(round((batch_ms + row_ms * size) * 1e6) for size in SIZES)
    beside = () if gain is None else tuple(round(2 * took / (1 + gain)) for took in alone)
    return MeasuredCurve(SIZES, alone, beside, filled)
