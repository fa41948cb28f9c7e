"""The search of settings: what it finds is the best of what there is, by simulations that give the same again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidSettings
from stoker.profiling.profile import Measured, RequestCost, find_settings
from stoker.profiling.search import Candidate, Load, MeasuredCurve, SearchResult, Space, search, simulated

SIZES = (1, 4, 16)
ONE_SEED = (5,)


def line(batch_ms: float, row_ms: float, gain: float | None = None, *, filled: bool = False) -> MeasuredCurve:
    """A curve with a part for the batch and one for each row; two at once do so much more in a second."""
    alone = tuple(round((batch_ms + row_ms * size) * 1e6) for size in SIZES)
    beside = () if gain is None else tuple(round(2 * took / (1 + gain)) for took in alone)
    return MeasuredCurve(SIZES, alone, beside, filled)


def found(
    curve: MeasuredCurve, target_ms: float, default: Candidate | None = None, rows: int = 1
) -> SearchResult:
    default = default or Candidate(SIZES[-1])
    space = Space({"auto": curve}, default, forks=bool(curve.beside_ns))
    return search(space, Load(target_ms, rows, ONE_SEED, targets=3, requests=60))


CURVES = st.builds(line, st.floats(0.5, 20), st.floats(0.01, 3), st.none() | st.floats(0, 1))


@given(CURVES, st.floats(1, 200), st.floats(1, 10), st.integers(1, 2))
def test_a_larger_target_never_gives_a_lower_peak(
    curve: MeasuredCurve, target_ms: float, times: float, instances: int
) -> None:
    """Whatever batches take, and however many run at once."""
    peaks = [curve.peak_rows_per_s(target, 16, instances) for target in (target_ms, target_ms * times)]
    assert peaks[0] <= peaks[1]
    assert (peaks[0] > 0) == (curve.alone(1) <= target_ms * 1e6)


@pytest.mark.parametrize(
    ("curve", "target_ms", "rows"),
    [(line(20, 1), 60, 1), (line(0.5, 2, 0.2), 40, 4), (line(8, 0.2, 0.9), 25, 1)],
)
def test_the_choice_is_never_worse_than_the_defaults(
    curve: MeasuredCurve, target_ms: float, rows: int
) -> None:
    """By simulation, for models of several kinds; and no load is beyond the best batches."""
    result = found(curve, target_ms, rows=rows)
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
    assert found(line(4, 0.5), 60).ranked[0].limit == "device"


def test_cost_of_a_request_is_part_of_all_times() -> None:
    """The frontends' time is taken from the target and added to the answers."""
    facts = {"max_batch_rows": 16, "instances": 1, "batch_buckets": [], "takes": "rows"}
    measured = Measured(facts | {"admission": "target", "forks": False}, {"auto": line(4, 0.5)})
    load = Load(20, seeds=ONE_SEED, targets=3, requests=60)
    alone = find_settings(measured, load).ranked[0]
    whole = find_settings(measured, load, RequestCost(2, 80.0, lone_ms=4.5 + 3)).ranked[0]
    assert alone.p50_ms > 4.5
    assert whole.p50_ms > 4.5 + 3
    assert 0 < whole.load_rows_per_s < alone.load_rows_per_s
    slow = RequestCost(1, 8_000.0, lone_ms=4.5)
    limited = find_settings(measured, load, slow).ranked[0]
    assert (limited.load_rows_per_s, limited.limit) == (pytest.approx(100), "frontends")
    with pytest.raises(InvalidSettings, match="one row takes 25"):
        find_settings(measured, load, RequestCost(1, 80.0, lone_ms=25))


def test_equal_arguments_give_equal_answers() -> None:
    """Chance has seeds."""
    assert found(line(2, 0.5, 0.6), 20) == found(line(2, 0.5, 0.6), 20)


@pytest.mark.parametrize(("gain", "instances"), [(0.1, 1), (0.9, 2), (None, 1)])
def test_a_second_instance_has_to_be_worth_it(gain: float | None, instances: int) -> None:
    """A server lets two batches run at once from a gain of 30 % on; below that, and without forks, there is one."""
    result = found(line(4, 0.5, gain), 60)
    assert result.ranked[0].candidate.instances == instances
    factor = 1 if instances == 1 else 1 + (gain or 0)
    assert result.ranked[0].peak_rows_per_s == pytest.approx(factor * 16 / 12e-3, rel=0.01)


def test_a_batch_too_slow_for_the_target_is_left_out() -> None:
    """Where a full batch takes longer than the target, the peak is that of the largest that does not."""
    curve = line(1, 1)
    assert found(curve, 6).ranked[0].peak_rows_per_s == pytest.approx(4 / 5e-3)
    assert curve.peak_rows_per_s(1.5, 16) == 0


def test_the_fastest_execution_is_chosen() -> None:
    """Of several curves that with the largest load counts."""
    default = Candidate(16, batch_buckets=SIZES)
    curves = {"auto": line(4, 0.5, filled=True), "graph": line(2, 0.5, filled=True)}
    choice = (
        search(Space(curves, default), Load(60, seeds=ONE_SEED, targets=3, requests=60)).ranked[0].candidate
    )
    assert (choice.execution, choice.max_batch_rows) == ("graph", 16)
    assert choice.settings()["batch_buckets"][-1] == 16


def test_how_many_requests_leave_together_is_no_setting() -> None:
    """Batches of whole requests have the size that the model allows; nothing is written of it."""
    default = Candidate(16, requests=True)
    result = found(line(2, 0.5), 40, default)
    assert {one.candidate.max_batch_rows for one in result.ranked} == {16}
    assert result.ranked[0].candidate.settings() == {"instances": 1}


def test_two_instances_do_what_their_gain_says() -> None:
    """Simulated under overload, a device does as much as its curve allows, and no more."""
    for gain in (0.4, 1.0):
        curve, candidate = line(4, 0.5, gain), Candidate(16, instances=2)
        outcome = simulated(curve, candidate, Load(30), 3 * 16 / 12e-3, 0.3, 3)
        done = outcome.answered_rows / (outcome.end_ns / 1e9)
        assert done == pytest.approx((1 + gain) * 16 / 12e-3, rel=0.15)


@pytest.mark.parametrize("instances", [1, 2])
def test_candidates_are_simulated_with_the_admission_of_the_model(instances: int) -> None:
    """Under overload as many are in time as if all were taken, and those are refused who would wait in vain."""
    curve, load = line(4, 0.5, 0.5), Load(60)
    taking, refusing = (
        simulated(curve, Candidate(16, instances, admission=admission), load, 3 * 16 / 12e-3, 0.3, 3)
        for admission in ("rows", "target")
    )
    assert refusing.in_time() >= 0.97 * taking.in_time()
    assert refusing.answered_rows < 0.9 * taking.answered_rows


def test_the_admission_of_a_model_stays_with_all_candidates() -> None:
    """It is the model's own setting, and none that is searched or written."""
    space = Space({"auto": line(2, 0.5)}, Candidate(16, admission="rows"))
    assert {candidate.admission for candidate in space.candidates()} == {"rows"}
    assert "admission" not in space.default.settings()


def test_a_curve_goes_through_the_middle_of_what_was_timed() -> None:
    """Hiccups do not move it, larger batches never take less, and JSON keeps it."""
    alone = [(1, 1_000_000)] * 9 + [(1, 90_000_000)] + [(4, 900_000)] * 10 + [(16, 4_000_000)] * 10
    curve = MeasuredCurve.fitted(alone, [(16, 6_000_000)] * 5)
    assert curve.alone(1) == pytest.approx(1e6, rel=0.02)
    assert curve.alone(4) >= curve.alone(1)
    assert curve.alone(10) == pytest.approx(2.5e6, rel=0.05)
    assert curve.alone(32) == pytest.approx(8e6, rel=0.02)
    assert curve.gain(16) == pytest.approx(1 / 3, abs=0.02)
    again = MeasuredCurve.from_json(curve.to_json())
    assert again.alone(16) == pytest.approx(curve.alone(16), rel=1e-3)
