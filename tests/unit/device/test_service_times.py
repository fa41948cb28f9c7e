"""The expected times of batches, learned from those that have run."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.batch_sizes import ServiceTimes

MS = 1_000_000
MOST = 64


def truth(rows: int) -> float:
    """ResNet-50 on an A100."""
    return (1.7 + 0.25 * rows) * MS


def learned(count: int, seed: int, scale: float = 1.0, times: ServiceTimes | None = None) -> ServiceTimes:
    """Batches of any size, each up to some percent longer than the truth."""
    chance = random.Random(seed)
    times = times or ServiceTimes()
    for _ in range(count):
        rows = chance.randint(1, MOST)
        times.learn(rows, round(scale * truth(rows) * (1 + abs(chance.gauss(0, 0.05)))))
    return times


@pytest.mark.parametrize("seed", range(8))
def test_every_size_is_known_after_thirty_two_batches(seed: int) -> None:
    """Of noise of 5 % the nine in ten are 8 %: what is expected is within 10 % of that."""
    times = learned(32, seed)
    for rows in range(1, MOST + 1):
        assert times.expected_ns(rows) == pytest.approx(1.082 * truth(rows), rel=0.1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_device_that_changes_is_followed_within_sixty_four_batches(seed: int, scale: float) -> None:
    """Clocks, and neighbours that come and go."""
    times = learned(64, seed + 100, scale, learned(200, seed))
    for rows in (1, 7, 32, MOST):
        assert times.expected_ns(rows) == pytest.approx(1.082 * scale * truth(rows), rel=0.15)


def test_buckets_between_powers_of_two_have_means_of_their_own() -> None:
    """Batches of 32 and 48 rows are told apart; without buckets both are of one power of two."""
    times = ServiceTimes((32, 48, 64))
    times.learn_mean(32, 3 * MS)
    times.learn_mean(48, 4 * MS)
    assert [times.known_ns(rows) for rows in (20, 32, 40, 48, 64)] == [3 * MS, 3 * MS, 4 * MS, 4 * MS, None]
    assert [times.mean_ns(rows) for rows in (1, 33, 64, 100)] == [3 * MS, 4 * MS, 4 * MS, 4 * MS]


@STEADY
@given(st.lists(st.integers(1, MOST), min_size=32, max_size=80), st.integers(0, 9))
def test_one_hiccup_moves_nothing_by_a_tenth(sizes: list[int], seed: int) -> None:
    """However much longer one batch takes than all others."""
    calm, struck = ServiceTimes(), ServiceTimes()
    chance = random.Random(seed)
    place = chance.randrange(8, len(sizes))
    for number, rows in enumerate(sizes):
        elapsed_ns = round(truth(rows) * (1 + chance.random() / 50))
        calm.learn(rows, elapsed_ns)
        struck.learn(rows, 50 * elapsed_ns if number == place else elapsed_ns)
    for rows in (1, 16, MOST):
        assert struck.expected_ns(rows) == pytest.approx(calm.expected_ns(rows), rel=0.1)


@STEADY
@given(
    st.lists(st.tuples(st.integers(1, MOST), st.integers(1, 50 * MS)), min_size=1, max_size=100),
    st.booleans(),
)
def test_more_rows_never_take_less(batches: list[tuple[int, int]], has_buckets: bool) -> None:
    """Holds for any measured times; costs are the expected times."""
    buckets = (1, 8, 32, MOST) if has_buckets else ()
    times = ServiceTimes(buckets)
    for rows, elapsed_ns in batches:
        times.learn(next((size for size in buckets if size >= rows), rows), elapsed_ns)
    costs = times.costs_ns(MOST, buckets)
    assert len(costs) == MOST + 1
    assert costs == sorted(costs)
    if len(batches) >= 8 and not has_buckets:
        expected = [times.expected_ns(rows) for rows in range(1, MOST + 1)]
        assert costs[1:] == pytest.approx(expected, abs=2)


@STEADY
@given(st.lists(st.integers(1, 50 * MS), min_size=1, max_size=100))
def test_expected_time_of_a_bucket_was_measured(times_ns: list[int]) -> None:
    """The expected time is one of the last times measured."""
    times = ServiceTimes((4, 8))
    for elapsed_ns in times_ns:
        times.learn(4, elapsed_ns)
    assert times.expected_ns(3) in times_ns[-64:]
    # A larger one is not known yet.
    assert times.expected_ns(8) == 2 * times.expected_ns(4)


@settings(STEADY, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, MOST), st.integers(1, 50 * MS)), min_size=1, max_size=100))
def test_expected_time_is_not_below_all_measured_times(batches: list[tuple[int, int]]) -> None:
    """Without buckets, some recent batch took no longer than the expected time."""
    times = ServiceTimes()
    for rows, elapsed_ns in batches:
        times.learn(rows, elapsed_ns)
    assert any(elapsed_ns <= times.expected_ns(rows) + 1 for rows, elapsed_ns in batches[-64:])


def test_only_one_size_says_little_of_others() -> None:
    """Fewer rows may take as long, more take longer in proportion; so it is tried with care."""
    times = ServiceTimes()
    for _ in range(20):
        times.learn(4, 8 * MS)
    assert [times.expected_ns(rows) for rows in (1, 4, 16)] == pytest.approx([8 * MS, 8 * MS, 32 * MS])


def test_a_size_that_runs_no_more_is_not_forgotten() -> None:
    """A night of single rows leaves what the day has shown of full batches."""
    times = learned(100, 1)
    for _ in range(500):
        times.learn(1, round(truth(1)))
    assert times.expected_ns(MOST) == pytest.approx(truth(MOST), rel=0.15)


def test_times_are_kept_apart_by_number_of_running_batches() -> None:
    """Two batches at once take longer; before that was seen, what is known counts."""
    times = ServiceTimes((4,))
    times.learn(4, 10 * MS)
    assert times.expected_ns(4, beside=1) == 10 * MS
    times.learn(4, 19 * MS, beside=1)
    times.running = 1
    assert (times.expected_ns(4), times.expected_ns(4, beside=1), times.costs_ns(4, (4,))[4]) == (
        10 * MS,
        19 * MS,
        19 * MS,
    )
