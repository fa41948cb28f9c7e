"""The report of how far a server does what the simulator says."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stoker_bench.agreement import AgreementReport, LightRun, Run


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
