"""Batch times by number of rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.profiling.linear_curves import line

from stoker.profiling.curves import MeasuredCurve, PaddedCurve

CURVES = st.builds(line, st.floats(0.5, 20), st.floats(0.01, 3), st.none() | st.floats(0, 1))


@given(CURVES, st.floats(1, 200), st.floats(1, 10), st.integers(1, 2))
def test_a_larger_target_never_gives_a_lower_peak(
    curve: MeasuredCurve, target_ms: float, times: float, instances: int
) -> None:
    """Holds for any curve, and for one or two batches at once."""
    peaks = [curve.peak_rows_per_s(target, 16, instances) for target in (target_ms, target_ms * times)]
    assert peaks[0] <= peaks[1]
    assert (peaks[0] > 0) == (curve.alone(1) <= target_ms * 1e6)


def test_a_curve_goes_through_the_medians() -> None:
    """Hiccups do not move it, larger batches never take less, and JSON has it in ms."""
    alone = [(1, 1_000_000)] * 9 + [(1, 90_000_000)] + [(4, 900_000)] * 10 + [(16, 4_000_000)] * 10
    curve = MeasuredCurve.fit(alone, [(16, 6_000_000)] * 5)
    assert curve.alone(1) == pytest.approx(1e6, rel=0.02)
    assert curve.alone(4) >= curve.alone(1)
    assert curve.alone(10) == pytest.approx(2.5e6, rel=0.05)
    assert curve.alone(32) == pytest.approx(8e6, rel=0.02)
    assert curve.gain(16) == pytest.approx(1 / 3, abs=0.02)
    assert curve.to_json()["ms"][-1] == pytest.approx(curve.alone(16) / 1e6, rel=1e-3)


def test_padded_batches_take_the_time_of_their_bucket() -> None:
    """Batches beyond the largest bucket take the time of their own rows."""
    padded = PaddedCurve(line(2, 1, 0.5), buckets=(4, 16))
    assert [padded.batch_ns(rows) for rows in (1, 4, 5)] == [6_000_000, 6_000_000, 18_000_000]
    assert padded.batch_ns(32) == 36_000_000
    assert padded.speed(1) == pytest.approx(0.75)
