"""The simulator with the arrivals of a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stoker.simulation.workload import Jitter
from stoker_bench.agreement import CURVE, AgreementReport, Answers, Expected, LightRun, Run, simulated
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


def run(**figures: Any) -> Run:
    """A run that is as simulated."""
    alike: dict[str, Any] = {
        "load": 2.0,
        "queries": 100,
        "in_time": 0.5,
        "in_time_simulated": 0.5,
        "in_time_for_callers": 0.45,
        "p50_ms": 170.0,
        "p50_simulated_ms": 170.0,
        "refused": 0.2,
        "refused_simulated": 0.2,
        "refusals_p99_ms": 3.0,
        "failed": 0,
        "full_batch_ms": 85.0,
        "foreign_cores": 0.1,
    }
    return Run(**alike | figures)


def report(*runs: Run, light: tuple[LightRun, ...] = ()) -> AgreementReport:
    """A report of some runs."""
    return AgreementReport("puppet", 1, len(runs), "a model", target_ms=200, runs=[*runs], light=[*light])


def test_what_is_as_simulated_meets_the_bounds() -> None:
    """Every figure of the tables is in the JSON document too."""
    told = report(run(), light=(LightRun(0.1, 25.0, 25.2),))
    assert [bound.met for bound in told.bounds()] == [True] * 4
    assert "0.500" in str(told)
    assert told.further()["runs"][0]["refusals_p99_ms"] == 3.0
    assert told.further()["light"] == [{"load": 0.1, "p50_ms": 25.0, "p50_without_ms": 25.2}]


@pytest.mark.parametrize(
    "figures",
    [{"in_time": 0.47}, {"in_time": 0.53}, {"p50_ms": 190.0}, {"p50_ms": math.nan}, {"refusals_p99_ms": 5.5}],
)
def test_what_is_not_misses_its_bound(figures: dict[str, float]) -> None:
    """Better than simulated is not as simulated either, and no answer in time is no agreement."""
    assert sum(not bound.met for bound in report(run(**figures)).bounds()) == 1


def test_medians_of_rounds_count() -> None:
    """One round in which the machine was busy says nothing; of no refusals nothing is said."""
    told = report(run(in_time=0.3), run(), run(refusals_p99_ms=None), run(load=0.8, refusals_p99_ms=None))
    assert [bound.met for bound in told.bounds()] == [True] * 5
    assert sum("refusals" in bound.text for bound in told.bounds()) == 1


def test_a_target_may_not_make_light_loads_slow() -> None:
    """Ratios are of rounds, whose arrivals are the same."""
    pairs = (LightRun(0.3, 51.0, 50.0), LightRun(0.3, 40.0, 50.0), LightRun(0.3, 60.9, 60.0))
    (bound,) = report(light=pairs).bounds()
    assert (bound.measured, bound.met) == (pytest.approx(0.015), True)
    assert not report(light=(LightRun(0.3, 51.1, 50.0),)).bounds()[0].met


def test_requests_without_an_answer_are_told() -> None:
    """They are neither in time nor refused."""
    assert "3 requests had no answer" in str(report(run(failed=3)))


def test_answers_are_counted_by_what_became_of_them() -> None:
    """In time are those that are answered within the target; refusals have a time of their own; others failed."""
    table = np.array(
        [
            [7.2, 0.3, 200],
            [7.0, 0.1, 200],
            [7.1, 0.2, 200],
            [7.3, 0.004, 503],
            [7.4, 0.2, 504],
            [7.5, 0.0, 0],
            [7.6, 0.001, 500],
            [7.7, 0.002, 503],
        ]
    )
    answers = Answers.of(table)
    assert answers.due_s == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert (answers.in_time(200), answers.in_time(1000)) == (2 / 8, 3 / 8)
    assert answers.p50_ms(200) == pytest.approx(150)
    assert (answers.refused, answers.failed) == (2 / 8, 2)
    assert answers.refusals_p99_ms == pytest.approx(3.98)


def test_a_run_without_answers_has_none_in_time() -> None:
    """And no median, and no refusals."""
    answers = Answers.of(np.empty((0, 3)))
    assert (answers.in_time(200), answers.refused, answers.refusals_p99_ms, answers.failed) == (0, 0, None, 0)
    assert np.isnan(answers.p50_ms(200))
