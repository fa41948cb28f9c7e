"""A whole bench on real servers, with a load generator that asks just once a slice."""

import os
from pathlib import Path

import pytest
from loadtests.tests.one_request import OneRequest

from stoker_bench.benches import lineup
from stoker_bench.benches.bench import run_bench
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.contestants.baselines import BARE, HANDWRITTEN, STARLETTE
from stoker_bench.contestants.contest import Case
from stoker_bench.contestants.offline import NAME_PREFIX, OfflineRuntime
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows
from stoker_bench.networks.onnx_graphs import seeded_mlp


def test_bench_checks_all_contestants_and_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stoker and all baselines answer rightly, every case has all contestants, and nothing is left running."""
    monkeypatch.setattr(lineup, "OwnGenerator", OneRequest)
    # Servers of other tests may be children of this process too.
    before = set(ProcessTree(os.getpid()).pids())
    report = run_bench(BenchOptions(seconds=0, rounds=1, concurrency=(2,), rows=5))
    single, large = report.cases
    assert list(single.slices) == ["Stoker", BARE, STARLETTE, HANDWRITTEN]
    assert list(large.slices)[:2] == ["Stoker", HANDWRITTEN]
    assert all(name.startswith(NAME_PREFIX) for name in list(large.slices)[2:])
    for result in report.cases:
        assert not any(taken.errors for slices in result.slices.values() for taken in slices)
    # A request that stood alone made a batch of its own rows.
    assert [result.slices["Stoker"][0].mean_batch_rows for result in report.cases] == [1, 5]
    weight, frameworks = report.further_bounds
    assert weight.measured > 0
    assert frameworks.met
    children = set(ProcessTree(os.getpid()).pids()) - before
    assert not [pid for pid in children if "stoker" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_offline_runtime_measures_whole_bodies(tmp_path: Path) -> None:
    """The loop runs at least once a turn, its rate counts the body's rows, and the process ends with the block."""
    model, body = tmp_path / "mlp.onnx", tmp_path / "body"
    seeded_mlp(widths=(3, 4, 2)).save(model)
    body.write_bytes(DATA_LISTS.encode(random_rows(6, (3,))))
    with OfflineRuntime(model, 1, body) as runtime:
        taken = runtime.run(Case(4, rows=6), seconds=0)
    assert taken.rows_per_s == pytest.approx(6 * taken.requests_per_s)
    assert taken.requests_per_s > 0
    with (
        pytest.raises(BenchedServerError, match="ended"),
        OfflineRuntime(tmp_path / "none", 1, body) as runtime,
    ):
        runtime.run(Case(4, rows=6), seconds=0)


def test_runtime_alone_runs_rows_from_memory(tmp_path: Path) -> None:
    """Without a body there is nothing to parse, and the name says so."""
    model = tmp_path / "mlp.onnx"
    seeded_mlp(widths=(3, 4, 2)).save(model)
    with OfflineRuntime(model, 0, 6) as runtime:
        taken = runtime.run(Case(4, rows=6), seconds=0)
    assert runtime.name == "ONNX Runtime, default threads"
    assert taken.rows_per_s == pytest.approx(6 * taken.requests_per_s)
