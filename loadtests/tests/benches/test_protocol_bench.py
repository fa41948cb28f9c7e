"""`stoker bench --protocols`: its bounds, and a whole one on a real server with a generator that asks just once."""

import pytest
from loadtests.tests.one_request import OneRequest

from stoker_bench.benches import lineup
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.benches.protocol_bench import BINARY, JSON_SCORE, _case_bounds, run_protocol_bench
from stoker_bench.contestants.contest import Case, Slice
from stoker_bench.reports import CaseResult


def rates(**rows_per_s: float) -> dict[str, list[Slice]]:
    """Return a slice each."""
    return {name: [Slice(rate, rate, 0)] for name, rate in rows_per_s.items()}


def test_binary_has_to_keep_up_with_json_and_with_the_runtime() -> None:
    """One row against JSON; many rows against the better of the runtime's settings."""
    single = CaseResult(Case(64), (3280, 5410), rates(**{BINARY: 99, JSON_SCORE: 100}), {})
    alone = {"ONNX Runtime, default threads": 80, "ONNX Runtime, 1 thread": 100}
    large = CaseResult(Case(4, 256), (9,), rates(**{BINARY: 90, JSON_SCORE: 50, **alone}), {})
    bounds = [*_case_bounds(single), *_case_bounds(large)]
    assert [(bound.measured, bound.met) for bound in bounds] == [(0.99, False), (0.9, True)]
    assert "ONNX Runtime, 1 thread" in bounds[1].text


def test_bench_asks_one_server_in_both_dialects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are checked and answered without an error; with many rows the runtime alone takes its turns too."""
    monkeypatch.setattr(lineup, "OwnGenerator", OneRequest)
    monkeypatch.setattr(lineup, "WARM_UP_S", 0)
    report = run_protocol_bench(BenchOptions(seconds=0, rounds=1, concurrency=(2,), rows=5))
    single, large = report.cases
    assert list(single.slices) == [BINARY, JSON_SCORE]
    assert list(large.slices)[:2] == [BINARY, JSON_SCORE]
    assert len(large.slices) == 4
    for result in report.cases:
        assert not any(taken.errors for slices in result.slices.values() for taken in slices)
        # A request that stood alone made a batch of its own rows.
        assert result.slices[BINARY][0].mean_batch_rows == result.case.rows
