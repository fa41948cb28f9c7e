"""Simulated requests and batch times."""

import numpy as np
import pytest

from stoker.simulation.workload import Jitter, Stream

SEED = 7


def test_stream_draws_rows_at_its_rate() -> None:
    """Rows come at the rate on average, in order, and within the time."""
    requests = Stream(2000, 50, caller=3).draw(10, np.random.default_rng(SEED))
    assert requests.rows.sum() == pytest.approx(20_000, rel=0.15)
    assert (np.diff(requests.at_ns) >= 0).all()
    assert requests.at_ns[-1] < 10e9
    assert (requests.target_ns == 50_000_000).all()
    assert (requests.caller == 3).all()


def test_jitter_only_lengthens_batches() -> None:
    """Factors are at least 1, most are small, and a hundredth are hiccups."""
    jitter = Jitter(np.random.default_rng(SEED), spread=0.03, hiccups=0.01)
    factors = [jitter.factor() for _ in range(10_000)]
    assert min(factors) >= 1
    assert np.median(factors) < 1.05
    assert 50 < sum(factor > 1.9 for factor in factors) < 150
