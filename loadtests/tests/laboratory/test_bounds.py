"""What no scheduler can exceed: held against schedulers, and against all that could be done in small worlds."""

from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.batching import BatchPolicy
from stoker.simulation.scheduler import PlannedScheduler
from stoker.simulation.workload import Curve, Jitter, Requests
from stoker.simulation.world import RowTable, Scheduler, row_tables, run
from stoker_bench.laboratory.suite import BASELINES, exact, fluid, has_exact

MS = 1_000_000
FEW = settings(STEADY, max_examples=25)

curves = st.builds(Curve, st.integers(0, 6), st.integers(1, 3), st.integers(1, 4))
arrivals = st.lists(st.integers(0, 4), min_size=1, max_size=30)


def requests_of(pauses_ms: list[int], target_ms: int, rows: int = 1) -> Requests:
    """Requests of one kind, each so long after the one before."""
    count = len(pauses_ms)
    nothing = np.zeros(count, np.int64)
    return Requests(
        np.array(pauses_ms).cumsum() * MS,
        np.full(count, rows),
        nothing,
        np.full(count, target_ms * MS),
        nothing + 1,
        nothing,
    )


def simulated(requests: Requests, curve: Curve, scheduler: Callable[[RowTable, Curve], Scheduler]) -> float:
    """The part of the rows that a scheduler answers in time, on a device that takes what the curve says."""
    tables = row_tables(requests, 1)
    steady = Jitter(np.random.default_rng(1), spread=0, hiccups=0)
    return run(requests, [curve], tables, scheduler(tables[0], curve), steady).in_time()


def best_of_all(at_ms: list[int], target_ms: int, curve: Curve) -> int:
    """The most rows in time of all batches of any rows at any whole millisecond."""

    @cache
    def most(now_ms: int, left: frozenset[int]) -> int:
        if not left or now_ms > max(at_ms) + target_ms:
            return 0
        found = most(now_ms + 1, left)
        for rows in range(1, curve.max_batch_rows + 1):
            ends_ms = now_ms + curve.batch_ns(rows) // MS
            ready = [row for row in left if at_ms[row] <= now_ms and ends_ms <= at_ms[row] + target_ms]
            for taken in combinations(ready, rows):
                found = max(found, rows + most(ends_ms, left - {*taken}))
        return found

    return most(0, frozenset(range(len(at_ms))))


@FEW
@given(curves, arrivals, st.integers(1, 30))
def test_no_scheduler_exceeds_the_bounds(curve: Curve, pauses_ms: list[int], target_ms: int) -> None:
    """Stoker and the others answer no more than the best batches, and these no more than rows that can be cut."""
    requests = requests_of(pauses_ms, target_ms)
    best = exact(requests, curve, MS)
    assert best <= fluid(requests, curve) + 1e-9
    # On a coarse grid it is rounded in favour of the bound.
    assert exact(requests, curve, 3 * MS) >= best - 1e-9
    policy = BatchPolicy(curve.max_batch_rows)
    for scheduler in (lambda table, _: PlannedScheduler(table, policy), *BASELINES.values()):
        assert simulated(requests, curve, scheduler) <= best + 1e-9


@FEW
@given(curves, st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 12))
def test_the_exact_bound_is_reached(curve: Curve, pauses_ms: list[int], target_ms: int) -> None:
    """It is what the best of all possible batches answer."""
    at_ms = np.cumsum(pauses_ms).tolist()
    found = exact(requests_of(pauses_ms, target_ms), curve, MS) * len(at_ms)
    assert found == pytest.approx(best_of_all(at_ms, target_ms, curve))


@FEW
@given(curves, arrivals, st.integers(1, 40), st.integers(1, 9))
def test_no_large_requests_exceed_the_fluid_bound(
    curve: Curve, pauses_ms: list[int], target_ms: int, rows: int
) -> None:
    """Requests of several rows count as a whole or not at all, which can be no more than their rows."""
    requests = requests_of(pauses_ms, target_ms, rows)
    policy = BatchPolicy(curve.max_batch_rows)
    assert (
        simulated(requests, curve, lambda table, _: PlannedScheduler(table, policy))
        <= fluid(requests, curve) + 1e-9
    )
    assert has_exact(requests) == (rows == 1)
