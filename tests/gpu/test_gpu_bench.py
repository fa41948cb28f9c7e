"""The bench on an NVIDIA GPU, with quick settings; skipped where there is none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest

from stoker_bench.gpu.aims import AIMS
from stoker_bench.gpu.ceiling import measure_ceiling
from stoker_bench.gpu.command import main
from stoker_bench.gpu.models import ModelMaker, Precision

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("first_gpu")]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_ceiling_has_every_way_with_its_copies(tmp_path: Path, precision: Precision) -> None:
    """Every way runs, and copies to and from the GPU take time."""
    model = ModelMaker(tmp_path).make("mlp", precision, "float32")
    ceiling = measure_ceiling(model, "cuda:0", (1, 8), 0.02)
    assert {batch.way for batch in ceiling.batches} >= {"bound", "graph"}
    assert all(batch.copy_in_ms > 0 and batch.copy_out_ms > 0 for batch in ceiling.batches)


def test_every_bound_is_measured(tmp_path: Path) -> None:
    """With small models, but for what quick runs leave out; without PyTorch its runtime is left out too."""
    file = tmp_path / "acceptance.json"
    assert main(["acceptance", "--quick", "--json", str(file)]) == 0
    found = orjson.loads(file.read_bytes())
    wanted = set(AIMS) - {"how-to", "tensorflow", "tensorflow fp16", "tensorrt", "tests"}
    if find_spec("torch") is None:
        wanted.remove("bert torch")
    assert set(found["values"]) == wanted, found["reasons"]
    assert {each["runtime"] for each in found["alone"]} & {"ONNX Runtime, fused", "ONNX Runtime, bound"}
