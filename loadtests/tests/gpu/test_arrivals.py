"""Arrivals of queries: a Poisson process drawn beforehand, and LoadGen's summary."""

import threading
import time

import numpy as np
import pytest

from stoker_bench.generators.load_generator import GeneratorError
from stoker_bench.gpu.arrivals import Query, Schedule, arrival_times_s, percentile_ms


def test_arrivals_are_a_seeded_poisson_process() -> None:
    """As many arrivals as the rate says, gaps of a mean of 1/rate with as large a deviation, the same each time."""
    times_s = arrival_times_s(500, 40, seed=3)
    assert len(times_s) == pytest.approx(20_000, rel=0.05)
    assert times_s[-1] < 40
    gaps_s = np.diff(times_s)
    assert (gaps_s > 0).all()
    assert gaps_s.mean() == pytest.approx(1 / 500, rel=0.05)
    assert gaps_s.std() == pytest.approx(1 / 500, rel=0.05)
    assert (times_s == arrival_times_s(500, 40, seed=3)).all()
    assert not np.array_equal(times_s[:100], arrival_times_s(500, 40, seed=4)[:100])
    assert len(arrival_times_s(0.01, 1, seed=1)) == 0


def test_loadgens_summary_is_read() -> None:
    """The 99th percentile of the summary is in milliseconds; a summary without one is an error with its words."""
    summary = "97.00 percentile latency (ns)   : 1\n99.00 percentile latency (ns)   : 1500000\n"
    assert percentile_ms(summary) == 1.5
    with pytest.raises(GeneratorError, match="reported no percentile; its summary: broken"):
        percentile_ms("broken\n")


def test_a_schedule_issues_its_queries_in_time_and_can_be_stopped() -> None:
    """Each query is issued no earlier than it is due, in order; a stopped one issues no more."""
    issued: list[tuple[Query, float]] = []
    stopped = threading.Event()
    Schedule(2000, 0.02, seed=1).run(lambda query: issued.append((query, time.monotonic())), stopped)
    assert [query.token for query, _ in issued] == list(range(len(arrival_times_s(2000, 0.02, seed=1))))
    assert all(at_s >= query.due_s for query, at_s in issued)
    stopped.set()
    before = len(issued)
    Schedule(2000, 0.02, seed=1).run(lambda query: issued.append((query, 0.0)), stopped)
    assert len(issued) == before
