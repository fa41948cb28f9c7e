"""A whole quick run of the bench on a GPU, on the CPU."""

import os
from pathlib import Path

import orjson
import pytest

from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.gpu import bench, poisson
from stoker_bench.gpu.command import main


def test_a_quick_run_measures_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU each part starts its server, gives figures without errors, and leaves nothing running."""
    monkeypatch.setattr(bench, "SETTLE_S", 0.8)
    monkeypatch.setattr(poisson, "SETTLE_S", 0.8)
    before = set(ProcessTree(os.getpid()).pids())
    file = tmp_path / "report.json"
    words = ["all", "--quick", "--device", "cpu", "--callers", "4", "--json", str(file)]
    assert main(words) == 0
    report = orjson.loads(file.read_bytes())
    assert report["failures"] == []
    (model,) = report["models"]
    assert report["ceiling_rows_per_s"][model] > 0
    cases = [(case["body"], case["callers"], case["errors"]) for case in report["served"]]
    assert cases == [("binary", 4, 0), ("json", 4, 0)]
    assert all(case["rows_per_s"] > 0 and case["mean_batch_rows"] >= 1 for case in report["served"])
    (search,) = report["poisson"]
    assert len(search["runs"]) >= 1
    assert sum(run["queries"] for run in search["runs"]) > 0
    printed = capsys.readouterr().out
    assert "ONNX Runtime alone" in printed
    assert "through Stoker" in printed
    children = set(ProcessTree(os.getpid()).pids()) - before
    assert not [pid for pid in children if "stoker" in Path(f"/proc/{pid}/cmdline").read_text()]
