"""When a new version loses its part of the requests, and when too few requests allow no judgement."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.settings.traffic import Bounds
from stoker.takeover.rollback import Counters, Trial, quantile_bounds_s

FEW = settings(STEADY, max_examples=30)

BOUNDS_S = (0.001, 0.01, 0.1, 1.0)
FAST, SLOW = (0, 1, 0, 0, 0), (0, 0, 0, 1, 0)


def make_counters(requests: int, failed: int = 0, times: tuple[int, ...] = FAST) -> Counters:
    """Counters of a version all of whose answers take alike long."""
    return Counters(requests - failed, failed, tuple((requests - failed) * share for share in times))


def reason_to_roll_back(old: Counters, new: Counters, bounds: Bounds | None = None) -> str | None:
    """The trial's verdict of versions whose counters began at zero."""
    trial = Trial(bounds or Bounds(), BOUNDS_S)
    nothing = Counters(times=(0,) * 5)
    assert trial.check(0.0, nothing, nothing) is None
    return trial.check(60.0, old, new)


@FEW
@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 99))
def test_little_says_nothing_and_a_version_that_is_no_worse_stays(
    requests: int, failed: int, few: int
) -> None:
    """However bad both are, or the old one alone."""
    failed = min(failed, requests)
    both, new = make_counters(requests, failed), make_counters(requests)
    assert reason_to_roll_back(both, both) is None
    assert reason_to_roll_back(both, new) is None
    assert reason_to_roll_back(make_counters(10_000), make_counters(few, few)) is None


@FEW
@given(st.integers(100, 5000), st.integers(100, 5000))
def test_version_that_always_fails_is_found_with_a_hundred_requests(old: int, new: int) -> None:
    """The reason has the counts."""
    reason = reason_to_roll_back(make_counters(old), make_counters(new, new))
    assert reason == f"{new} of its {new} requests have failed, of the others 0 of {old}"


@pytest.mark.parametrize(
    ("failed", "error_rate", "stays"),
    [(40, 0.01, False), (18, 0.01, True), (40, 0.1, True), (3, 0.0, True), (20, 0.0, False)],
)
def test_more_errors_have_to_be_certain(failed: int, error_rate: float, stays: bool) -> None:
    """Of 1,000 requests, errors by chance and within the allowed rate do not count."""
    reason = reason_to_roll_back(
        make_counters(1000), make_counters(1000, failed), Bounds(error_rate=error_rate)
    )
    assert (reason is None) == stays


def test_chance_takes_no_weight_away() -> None:
    """Two equal versions that fail one of fifty, looked at 150 times in each of 40 trials."""
    chance = random.Random(7)
    taken = 0
    for _ in range(40):
        trial = Trial(Bounds(), BOUNDS_S)
        seen = [[0, 0], [0, 0]]
        for look in range(150):
            for one in seen:
                one[0] += 20
                one[1] += sum(chance.random() < 0.02 for _ in range(20))
            taken += trial.check(2.0 * look, *(make_counters(*one) for one in seen)) is not None
    assert taken == 0


def test_a_version_that_is_slower_for_certain_loses_its_weight() -> None:
    """Times are known between bounds: 0.1 s against 0.01 s at least is ten times, the next bucket may be once."""
    assert reason_to_roll_back(make_counters(500), make_counters(500, times=SLOW)) == (
        "its p95 is above 100 ms, that of the others at most 10 ms, over 500 and 500 requests"
    )
    assert reason_to_roll_back(make_counters(500), make_counters(500, times=(0, 0, 1, 0, 0))) is None
    assert (
        reason_to_roll_back(make_counters(500), make_counters(500, times=SLOW), Bounds(latency_ratio=20.0))
        is None
    )
    assert reason_to_roll_back(make_counters(500), make_counters(500, times=(0, 0, 0, 0, 1))) is not None


def test_only_the_last_minutes_count() -> None:
    """Requests before the trial or more than five minutes ago do not count."""
    trial = Trial(Bounds(), BOUNDS_S)
    bad = make_counters(1000, 1000)
    assert trial.check(0.0, make_counters(1000), bad) is None
    for minute in range(1, 8):
        seen = 1000 + 200 * minute
        assert (
            trial.check(60.0 * minute, make_counters(seen), Counters(200 * minute, 1000, bad.times)) is None
        )
    fails_now = Counters(1400, 1400, bad.times)
    assert trial.check(480.0, make_counters(2600), fails_now) is not None


@FEW
@given(st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_the_percentile_lies_between_its_bounds(times_s: list[float]) -> None:
    """As the smallest time that 95 % do not exceed."""
    counts = [0] * 5
    for time_s in times_s:
        counts[sum(time_s > bound for bound in BOUNDS_S)] += 1
    exact = sorted(times_s)[-(-95 * len(times_s) // 100) - 1]
    low, high = quantile_bounds_s(BOUNDS_S, counts)
    assert low < exact <= high or exact == low == 0
