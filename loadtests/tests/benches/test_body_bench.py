"""`stoker bench --images` and `--tokens`: their bounds, and whole ones on real servers, asked just once."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from loadtests.tests.one_request import OneRequest

from stoker_bench.benches import lineup
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.benches.protocol_bench import _keeps_up, run_image_bench, run_token_bench
from stoker_bench.contestants.contest import Case, Slice
from stoker_bench.contestants.servers import OTHER
from stoker_bench.reports import CaseResult, Report


@pytest.mark.parametrize(("least", "met"), [(0.5, [False]), (0.4, [True]), (None, [])])
def test_a_server_has_to_keep_up_with_one_process(least: float | None, met: list[bool]) -> None:
    """Requests per second of the server over those of what reads and runs bodies alone, where there is a bound."""
    slices = {"Stoker": [Slice(45, 45, 0)], "Pillow + ONNX Runtime, 1 thread": [Slice(100, 100, 0)]}
    result = CaseResult(Case(16), (9,), slices, {})
    assert [bound.met for bound in _keeps_up(result, least)] == met


@pytest.mark.parametrize(("run", "alone"), [(run_image_bench, "Pillow"), (run_token_bench, "orjson")])
def test_bench_of_other_bodies(
    run: Callable[[BenchOptions], Report], alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are the model's; another Stoker, and a reader of bodies alone, take their turns."""
    monkeypatch.setattr(lineup, "pick_generator", OneRequest)
    monkeypatch.setattr(lineup, "WARM_UP_S", 0)
    against = Path(sys.executable)
    report = run(BenchOptions(seconds=0, rounds=1, concurrency=(1,), against=against))
    (result,) = report.cases
    assert list(result.slices) == ["Stoker", OTHER, f"{alone} + ONNX Runtime, 1 thread"]
    assert not any(taken.errors for slices in result.slices.values() for taken in slices)
