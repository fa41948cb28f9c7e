"""`stoker bench --scripts`: its report, and a whole one on real servers with one request."""

import shutil
from pathlib import Path

import pytest
from loadtests.tests.one_request import OneRequest

from stoker_bench.benches import lineup, script_bench
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.benches.script_bench import _merges, run_script_bench
from stoker_bench.contestants.contest import Case, Slice
from stoker_bench.contestants.entry_scripts import ONNX_SCORE
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows
from stoker_bench.networks.onnx_graphs import seeded_mlp
from stoker_bench.reports import CaseResult


def case(mean_batch_rows: float) -> CaseResult:
    """Return a case in which merging gave batches of some size."""
    merged = Slice(800, 800, 0, mean_batch_rows=mean_batch_rows)
    single = Slice(100, 100, 0, mean_batch_rows=1)
    return CaseResult(
        Case(64), (5410,), {"Stoker, merge": [merged], "Stoker, none": [single]}, {}, "A script"
    )


@pytest.mark.parametrize(("mean_batch_rows", "met"), [(8.1, True), (8, False)])
def test_merged_batches_have_to_be_larger_than_eight(mean_batch_rows: float, met: bool) -> None:
    """The bound is of the merging server alone."""
    (bound,) = _merges(case(mean_batch_rows))
    assert (bound.measured, bound.met) == (mean_batch_rows, met)


def test_bench_serves_each_script_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All servers answer rightly, each with its own batching, and merging was proved by the sample."""
    monkeypatch.setattr(script_bench, "OwnGenerator", OneRequest)
    monkeypatch.setattr(lineup, "WARM_UP_S", 0)
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    (run / "model" / "mnist-tf.model.meta").touch()
    seeded_mlp().save(run / "model.onnx")
    (run / "sample_input.json").write_bytes(DATA_LISTS.encode(random_rows(2, (784,))))
    # In the place of the script for TensorFlow, whose import takes seconds.
    script = Path(shutil.copy(ONNX_SCORE, tmp_path))
    report = run_script_bench(
        BenchOptions(run_folder=run, script=script, seconds=0, rounds=1, concurrency=(2,))
    )
    assert [result.subject for result in report.cases] == ["TensorFlow 1 script", "ONNX script"]
    for result in report.cases:
        assert list(result.slices) == ["Stoker, merge", "Stoker, handle", "Stoker, none"]
        assert not any(taken.errors for slices in result.slices.values() for taken in slices)
