"""The search finds the best of the candidates, by simulations that give the same result again."""

from __future__ import annotations

import pytest
from tests.unit.profiling.linear_curves import SIZES, line

from stoker.profiling.candidates import Candidate, Space
from stoker.profiling.curves import MeasuredCurve
from stoker.profiling.search import Load, SearchResult, search, simulate

ONE_SEED = (5,)


def search_curve(
    curve: MeasuredCurve, target_ms: float, default: Candidate | None = None, rows: int = 1
) -> SearchResult:
    default = default or Candidate(SIZES[-1])
    space = Space({"auto": curve}, default, forks=bool(curve.beside_ns))
    return search(space, Load(target_ms, rows, ONE_SEED, targets=3, requests=60))


@pytest.mark.parametrize(
    ("curve", "target_ms", "rows"),
    [(line(20, 1), 60, 1), (line(0.5, 2, 0.2), 40, 4), (line(8, 0.2, 0.9), 25, 1)],
)
def test_the_choice_is_never_worse_than_the_defaults(
    curve: MeasuredCurve, target_ms: float, rows: int
) -> None:
    """By simulation, for models of several kinds; and no load is beyond the best batches."""
    result = search_curve(curve, target_ms, rows=rows)
    choice = result.ranked[0]
    assert choice.load_rows_per_s >= result.default.load_rows_per_s
    assert all(one.load_rows_per_s <= one.peak_rows_per_s * 1.001 for one in result.ranked)


def test_the_frontends_limit_the_load() -> None:
    """No load is above what they have time for; as all settings reach it, the defaults are kept."""
    default = Candidate(16)
    load = Load(60, seeds=ONE_SEED, targets=3, requests=60, most_rows_per_s=200)
    result = search(Space({"auto": line(4, 0.5)}, default), load)
    choice = result.ranked[0]
    assert choice.peak_rows_per_s > 1000
    assert (choice.load_rows_per_s, choice.limit, choice.candidate) == (200, "frontends", default)
    assert search_curve(line(4, 0.5), 60).ranked[0].limit == "device"


def test_equal_arguments_give_equal_answers() -> None:
    """The simulations have fixed seeds."""
    assert search_curve(line(2, 0.5, 0.6), 20) == search_curve(line(2, 0.5, 0.6), 20)


@pytest.mark.parametrize(("gain", "instances"), [(0.1, 1), (0.9, 2), (None, 1)])
def test_a_second_instance_has_to_be_worth_it(gain: float | None, instances: int) -> None:
    """A server lets two batches run at once from a gain of 30 % on; below that, and without forks, there is one."""
    result = search_curve(line(4, 0.5, gain), 60)
    assert result.ranked[0].candidate.instances == instances
    factor = 1 if instances == 1 else 1 + (gain or 0)
    assert result.ranked[0].peak_rows_per_s == pytest.approx(factor * 16 / 12e-3, rel=0.01)


def test_a_batch_too_slow_for_the_target_is_left_out() -> None:
    """Where a full batch takes longer than the target, the peak is that of the largest that does not."""
    curve = line(1, 1)
    assert search_curve(curve, 6).ranked[0].peak_rows_per_s == pytest.approx(4 / 5e-3)
    assert curve.peak_rows_per_s(1.5, 16) == 0


def test_the_fastest_execution_is_chosen() -> None:
    """Of several curves, the one with the largest load is chosen."""
    default = Candidate(16, batch_buckets=SIZES)
    curves = {"auto": line(4, 0.5, filled=True), "graph": line(2, 0.5, filled=True)}
    choice = (
        search(Space(curves, default), Load(60, seeds=ONE_SEED, targets=3, requests=60)).ranked[0].candidate
    )
    assert (choice.execution, choice.max_batch_rows) == ("graph", 16)
    assert choice.settings()["batch_buckets"][-1] == 16


def test_batches_of_whole_requests_have_no_row_setting() -> None:
    """Their size is the one that the model allows, and is not written into the file."""
    default = Candidate(16, requests=True)
    result = search_curve(line(2, 0.5), 40, default)
    assert {one.candidate.max_batch_rows for one in result.ranked} == {16}
    assert result.ranked[0].candidate.settings() == {"instances": 1}


def test_throughput_of_two_instances_follows_their_gain() -> None:
    """Simulated under overload, a device does as much as its curve allows, and no more."""
    for gain in (0.4, 1.0):
        curve, candidate = line(4, 0.5, gain), Candidate(16, instances=2)
        outcome = simulate(curve, candidate, Load(30), 3 * 16 / 12e-3, 0.3, 3)
        done = outcome.answered_rows / (outcome.end_ns / 1e9)
        assert done == pytest.approx((1 + gain) * 16 / 12e-3, rel=0.15)


@pytest.mark.parametrize("instances", [1, 2])
def test_candidates_are_simulated_with_the_admission_of_the_model(instances: int) -> None:
    """Under overload as many rows are in time as without refusals, and rows that would be late are refused."""
    curve, load = line(4, 0.5, 0.5), Load(60)
    taking, refusing = (
        simulate(curve, Candidate(16, instances, admission=admission), load, 3 * 16 / 12e-3, 0.3, 3)
        for admission in ("rows", "target")
    )
    assert refusing.in_time() >= 0.97 * taking.in_time()
    assert refusing.answered_rows < 0.9 * taking.answered_rows
