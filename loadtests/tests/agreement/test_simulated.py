"""The simulator with the arrivals of a run."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.simulation.workload import Jitter
from stoker_bench.agreement import CURVE, Expected, simulated
from stoker_bench.gpu.poisson import arrival_times_s


def expected(load: float, way_ms: float = 0.0) -> Expected:
    """A second of requests of four rows, a target of 200 ms, batches that take what they should."""
    due_s = arrival_times_s(load * CURVE.peak_rows_per_s / 4, 1, seed=1)
    return simulated(due_s, 4, CURVE, 200, way_ms, Jitter(np.random.default_rng(1), 0, 0))


def test_lone_requests_take_their_batch_and_their_way() -> None:
    """Nobody is refused, and nobody is late."""
    due_s = np.array([0.0, 0.5, 1.0])
    told = simulated(due_s, 4, CURVE, 200, 3, Jitter(np.random.default_rng(1), 0, 0))
    assert (told.ready, told.in_time, told.refused) == (1, 1, 0)
    assert told.p50_ms == pytest.approx(20 + 4 + 3)


def test_more_than_the_model_can_do_is_refused() -> None:
    """Of four times as much a quarter is ready in time, and most of the others are told so when they come."""
    light, heavy = expected(0.5), expected(4.0)
    assert (light.ready, light.refused) == (1, 0)
    assert 0.2 < heavy.ready < 0.3
    assert 0.4 < heavy.refused < 1 - heavy.ready


def test_the_way_makes_answers_late_for_their_callers_alone() -> None:
    """The server knows nothing of it."""
    near, far = expected(4.0), expected(4.0, way_ms=30)
    assert far.ready == near.ready
    assert far.in_time < near.in_time == near.ready
