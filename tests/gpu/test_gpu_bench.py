"""The bench on an NVIDIA GPU, with quick settings; skipped where there is none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest

from stoker_bench.gpu.acceptance import AIMS
from stoker_bench.gpu.command import main

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("first_gpu")]


def test_a_quick_run_measures_copies_the_gpu_and_its_memory(tmp_path: Path) -> None:
    """Every way is run with pinned memory, no answer is wrong, and the driver reports load and memory."""
    file = tmp_path / "report.json"
    assert main(["all", "--quick", "--precisions", "fp32", "fp16", "--json", str(file)]) == 0
    report = orjson.loads(file.read_bytes())
    assert report["failures"] == []
    for ceiling in report["ceilings"].values():
        assert ceiling["pinned"]
        assert {batch["way"] for batch in ceiling["batches"]} >= {"bound", "graph"}
        assert all(batch["copy_in_ms"] > 0 and batch["copy_out_ms"] > 0 for batch in ceiling["batches"])
    assert not any(case["errors"] for case in report["served"])
    assert all(case["gpu"]["memory_bytes"] > 0 for case in report["served"])


def test_every_bound_is_measured(tmp_path: Path) -> None:
    """With small models; without PyTorch only its runtime is left out."""
    file = tmp_path / "acceptance.json"
    assert main(["acceptance", "--quick", "--json", str(file)]) == 0
    found = orjson.loads(file.read_bytes())
    wanted = set(AIMS) - {"bert torch"} if find_spec("torch") is None else set(AIMS)
    assert set(found["values"]) == wanted, found["reasons"]
    assert {each["runtime"] for each in found["alone"]} & {"ONNX Runtime, fused", "ONNX Runtime, bound"}
