"""`stoker bench --agreement`: whole, as short as it can be."""

from __future__ import annotations

import os
from pathlib import Path

from stoker_bench.agreement import LIGHT_LOADS, LOADS, AgreementOptions, run_agreement
from stoker_bench.contestants.servers import ProcessTree


def test_a_bench_of_agreement() -> None:
    """Both servers are started, all loads have their runs with refusals under overload, and nothing is left."""
    before = set(ProcessTree(os.getpid()).pids())
    report = run_agreement(AgreementOptions(seconds=1, rounds=1, rows=8))
    assert [run.load for run in report.light] == list(LIGHT_LOADS)
    assert all(run.p50_ms > 20 and run.p50_without_ms > 20 for run in report.light)
    assert [run.load for run in report.runs] == list(LOADS)
    assert all(run.queries and not run.failed for run in report.runs)
    assert all(0 <= run.in_time <= 1 and 0 < run.in_time_simulated <= 1 for run in report.runs)
    assert report.runs[-1].refused > 0
    assert report.runs[-1].refused_simulated > 0
    children = set(ProcessTree(os.getpid()).pids()) - before
    assert not [pid for pid in children if "stoker" in Path(f"/proc/{pid}/cmdline").read_text()]
