"""Simulated requests and batch times."""

import numpy as np
import pytest

from stoker.simulation.workload import Curve, Jitter, Pattern, Stream, joined

SEED = 7


@pytest.mark.parametrize("pattern", ["poisson", "gamma", "sine", "bursts"])
def test_stream_draws_rows_at_its_rate(pattern: Pattern) -> None:
    """Rows come at the rate on average, in order, and within the time."""
    stream = Stream(2000, 50, pattern=pattern, cv=2, most_rows=16)
    requests = stream.draw(10, np.random.default_rng(SEED))
    assert requests.rows.sum() == pytest.approx(20_000, rel=0.15)
    assert (np.diff(requests.at_ns) >= 0).all()
    assert requests.at_ns[-1] < 10e9
    assert requests.rows.max() <= 16
    assert (requests.target_ns == 50_000_000).all()


def test_gamma_stream_has_the_coefficient_of_variation() -> None:
    """The pauses of a gamma renewal process vary by `cv`."""
    requests = Stream(5000, 50, pattern="gamma", cv=4).draw(60, np.random.default_rng(SEED))
    pauses = np.diff(requests.at_ns)
    assert pauses.std() / pauses.mean() == pytest.approx(4, rel=0.1)


def test_joined_streams_keep_models_and_targets_in_order_of_arrival() -> None:
    """Each request keeps its model and target."""
    chance = np.random.default_rng(SEED)
    both = joined([Stream(500, 20).draw(1, chance), Stream(500, 70, model=1).draw(1, chance)])
    assert (np.diff(both.at_ns) >= 0).all()
    assert set(both.model.tolist()) == {0, 1}
    assert ((both.target_ns == 70_000_000) == (both.model == 1)).all()


def test_jitter_only_lengthens_batches() -> None:
    """Factors are at least 1, most are small, and a hundredth are hiccups."""
    jitter = Jitter(np.random.default_rng(SEED), spread=0.03, hiccups=0.01)
    factors = [jitter.factor() for _ in range(10_000)]
    assert min(factors) >= 1
    assert np.median(factors) < 1.05
    assert 50 < sum(factor > 1.9 for factor in factors) < 150


def test_partly_filled_bucket_takes_the_time_of_the_whole() -> None:
    """Padding rows are computed too."""
    curve = Curve(1, 0.5, 8, (2, 4, 8))
    assert [curve.batch_ns(rows) for rows in (1, 2, 3, 8)] == [2_000_000, 2_000_000, 3_000_000, 5_000_000]
    assert (curve.full_ns, curve.peak_rows_per_s) == (5_000_000, 1600)
