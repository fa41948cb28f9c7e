"""`stoker bench --loading`: its options, and a bench of a real server as short as can be."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker_bench.benches import loading_bench
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.benches.loading_bench import (
    LOADING,
    QUIET,
    LoadingReport,
    run_loading_bench,
)
from stoker_bench.commands import bench
from stoker_bench.contestants.contest import Case, Slice
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.errors import BenchedServerError


def test_the_command_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own options; those of other benches do not go with it."""
    run_options: list[BenchOptions] = []

    def pretend(options: BenchOptions) -> LoadingReport:
        run_options.append(options)
        return LoadingReport("puppet", options.seconds, options.rounds, "m")

    monkeypatch.setattr(loading_bench, "run_loading_bench", pretend)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    arguments = ["--loading", "--model", "m.onnx", "--seconds", "2", "--rounds", "4", "--concurrency", "8"]
    assert bench.run(parser.parse_args([*arguments, "--frontends", "2"])) == 0
    assert bench.run(parser.parse_args(["--loading"])) == 0
    options = BenchOptions(model=Path("m.onnx"), seconds=2, rounds=4, concurrency=(8,), frontends=2)
    assert run_options == [options, BenchOptions()]
    with pytest.raises(InvalidSettings, match="--rows does not go with --loading"):
        bench.run(parser.parse_args(["--loading", "--rows", "3"]))


def test_loads_that_fail_end_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a server that loads nothing would say nothing."""

    class Puppet:
        def run(self, case: Case, seconds: int) -> Slice:
            return Slice(rows_per_s=1, requests_per_s=1, errors=0)

    monkeypatch.setattr(loading_bench, "post", lambda *_: (403, b"no"))
    loading = loading_bench.WhileLoading(Puppet(), 1, "key", [])  # type: ignore[arg-type]  # a puppet
    with pytest.raises(BenchedServerError, match="did not load a model: 403 b'no'"):
        loading.run(Case(1), 1)


def test_a_bench_of_loading() -> None:
    """The server is checked, takes its turns without an error while another model comes and goes, and ends."""
    before = set(ProcessTree(os.getpid()).pids())
    report = run_loading_bench(BenchOptions(seconds=1, rounds=1, concurrency=(4,), frontends=1))
    (case,) = report.cases
    assert list(case.slices) == [LOADING, QUIET]
    for (taken,) in case.slices.values():
        assert taken.errors == 0
        assert taken.requests_per_s > 0
    assert len(report.loads_s) >= 1
    assert f"loaded {len(report.loads_s)} times" in str(report)
    assert report.as_json()["loads_s"] == report.loads_s
    children = set(ProcessTree(os.getpid()).pids()) - before
    assert not [pid for pid in children if "stoker" in Path(f"/proc/{pid}/cmdline").read_text()]
