"""A whole quick run of the bench on a GPU, on the CPU."""

import os
from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest

from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.gpu.aims import AIMS
from stoker_bench.gpu.command import main

GPU_ALONE = {"sizes memory", "demand memory", "how-to", "tensorflow", "tensorflow fp16", "tensorrt", "tests"}
"""A quick run on a CPU does not measure these."""


def test_a_quick_run_measures_every_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the CPU each step starts its server, gives figures without errors, and leaves nothing running."""
    before = set(ProcessTree(os.getpid()).pids())
    file = tmp_path / "report.json"
    assert main(["acceptance", "--quick", "--device", "cpu", "--json", str(file)]) == 0
    found = orjson.loads(file.read_bytes())
    absent = GPU_ALONE | {"bert torch"} if find_spec("torch") is None else GPU_ALONE
    assert set(found["values"]) == set(AIMS) - absent, found["reasons"]
    assert set(found["reasons"]) == absent
    printed = capsys.readouterr().out
    assert "ONNX Runtime alone" in printed
    assert "512 callers: " in printed
    assert "Poisson arrivals by " in printed
    children = set(ProcessTree(os.getpid()).pids()) - before
    assert not [pid for pid in children if "stoker" in Path(f"/proc/{pid}/cmdline").read_text()]
