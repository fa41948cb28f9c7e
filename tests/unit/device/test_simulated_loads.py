"""The server's scheduler under simulated load: overload, admission and tiers."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.simulated_device import A100, Curve, joined, run_alone

from stoker.device import shares
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import ServiceTimes
from stoker.settings.choices import Admission
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler
from stoker.simulation.workload import Jitter, Requests, Stream
from stoker.simulation.world import Outcome, row_table

SEED = 7
MS = 1_000_000


def simulated(
    load: float,
    target_ms: float,
    seconds: float = 1.0,
    policy: BatchPolicy | None = None,
    admission: Admission = "target",
    callers: tuple[float, ...] = (),
) -> Outcome:
    """One run without hiccups; `callers` are loads of further callers."""
    chance = np.random.default_rng(SEED)
    loads = (load, *callers)
    streams = [
        Stream(each * A100.peak_rows_per_s, target_ms, caller=number) for number, each in enumerate(loads)
    ]
    requests = joined([stream.draw(seconds, chance) for stream in streams])
    policy, table = policy or BatchPolicy(A100.max_batch_rows), row_table(requests)
    admits = AdmissionControl(policy) if admission == "target" else None
    planned = PlannedScheduler(table, policy, admission=admits)
    return run_alone(requests, A100, table, planned, Jitter(np.random.default_rng(SEED + 1), hiccups=0))


@pytest.mark.parametrize(("load", "target_ms", "least"), [(0.95, 25, 0.94), (2, 50, 0.47), (2, 25, 0.45)])
def test_overload_keeps_the_rate_of_answers_in_time(load: float, target_ms: float, least: float) -> None:
    """At twice the peak nearly as many rows are in time as the device computes in full batches."""
    assert simulated(load, target_ms, 4).in_time() >= least


@pytest.mark.parametrize("load", [2, 10])
def test_late_rows_are_refused_in_time(load: float) -> None:
    """With `late: refuse` nearly all answers are in time, and no refusal takes longer than the target."""
    outcome = simulated(load, 50, 0.5, BatchPolicy(64, late="refuse"))
    assert outcome.in_time() * load > 0.9
    assert outcome.latency_ms(0.99) <= 52
    assert outcome.end_ns < 0.7e9


@pytest.mark.parametrize(("load", "target_ms", "refused"), [(4, 50, 0.2), (10, 24.8, 0.7)])
def test_admission_by_target_refuses_under_overload_and_loses_no_goodput(
    load: float, target_ms: float, refused: float
) -> None:
    """Beside `rows`, which admits all, as many rows are in time."""
    admitted, refusing = (
        simulated(load, target_ms, 0.5, admission=admission) for admission in ("rows", "target")
    )
    assert admitted.refused_rows == 0
    assert refusing.in_time() >= 0.95 * admitted.in_time()
    assert refusing.refused_rows > refused * refusing.requests.rows.sum()


def test_flood_of_one_caller_leaves_others_in_time() -> None:
    """Five callers of load 0.1 are in time beside one of load 3."""
    outcome = simulated(3, 50, callers=(0.1,) * 5)
    assert min(outcome.in_time(caller=caller) for caller in range(1, 6)) >= 0.99
    assert outcome.in_time() >= 0.27


def test_same_seed_gives_the_same_outcome() -> None:
    """No clock is read."""
    first, second = (simulated(0.8, 30) for _ in range(2))
    assert (first.done_ns == second.done_ns).all()


@patch.object(shares, "TIER_FLOOR", 0.0)
@settings(STEADY, max_examples=25)
@given(
    st.builds(Curve, st.integers(0, 10), st.integers(1, 4), st.integers(1, 16)),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=30),
)
@example(Curve(3, 3, 4), [(14, 4)], [(19, 1), (0, 15)])
def test_lower_tier_delays_a_higher_one_by_at_most_half_of_its_target(
    curve: Curve, high: list[tuple[int, int]], low: list[tuple[int, int]]
) -> None:
    """A row that takes half of its target alone is in time beside any rows of a lower tier.

    A batch takes at most half of the smallest target: a request that needs more than that is cut, and may be late.
    """
    rows = 1
    at_ms = [0]
    for pause_ms, count in high:
        # No row of the higher tier waits for another one.
        at_ms.append(at_ms[-1] + pause_ms + round(3 * curve.full_ns / MS))
        rows = max(rows, min(count, curve.max_batch_rows))
    wait_ms = 2 * (curve.batch_ms + curve.row_ms * rows) + 1
    parts = [requests_of(at_ms, [1, *(min(n, curve.max_batch_rows) for _, n in high)], wait_ms, tier=0)]
    if low:
        parts.append(
            requests_of(np.cumsum([pause for pause, _ in low]).tolist(), [n for _, n in low], 1e4, tier=2)
        )
    requests = joined(parts)
    table = row_table(requests)
    times = ServiceTimes()
    for _ in range(4):
        for count in (1, 2, max(1, curve.max_batch_rows // 2), curve.max_batch_rows):
            times.learn(count, curve.batch_ns(count))
    policy = BatchPolicy(curve.max_batch_rows)
    steady = Jitter(np.random.default_rng(1), spread=0, hiccups=0)
    planned = PlannedScheduler(table, policy, times=times)
    assert run_alone(requests, curve, table, planned, steady).in_time(tier=0) == 1


def requests_of(at_ms: list[int], rows: list[int], target_ms: float, tier: int) -> Requests:
    """Requests of one tier."""
    same = np.ones(len(at_ms), np.int64)
    return Requests(
        np.array(at_ms) * MS,
        np.array(rows),
        round(target_ms * MS) * same,
        tier * same,
        0 * same,
    )
