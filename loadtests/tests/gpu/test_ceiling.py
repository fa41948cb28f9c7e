"""The runtime alone: its best batch, and how its steps are timed."""

import argparse
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import orjson
import pytest

from stoker_bench.gpu import ceiling
from stoker_bench.gpu.ceiling import (
    WAYS,
    BatchFigures,
    Ceiling,
    _Bench,
    _figures,
    _repeat_steps,
    measure_ceiling,
)
from stoker_bench.gpu.models import GpuModel

SMALL = BatchFigures(1, "bound", 500, 400, 0.1, 2.0, 0.01)
LARGE = BatchFigures(64, "graph", 8000, 6000, 1.0, 8.0, 0.02)
CEILING = Ceiling((SMALL, LARGE), failures=("nhwc: not here",))


def test_the_ceiling_is_the_best_batch() -> None:
    """The best batch size and way gives the rate that others are compared with."""
    assert CEILING.best is LARGE
    assert CEILING.rows_per_s == 8000


def test_output_of_onnx_runtime_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines about missing libraries before the figures are skipped."""
    figures = {"batches": [dataclasses.asdict(SMALL)], "failures": []}
    commands: list[list[str]] = []

    def output_of(command: list[str], _: float) -> str:
        commands.append(command)
        return f"Failed to load libcurand.so.10: no such file\n{orjson.dumps(figures).decode()}\n"

    monkeypatch.setattr(ceiling, "output_of", output_of)
    model = GpuModel("resnet50", "fp16", "uint8", tmp_path / "model.onnx", "images", (2, 2, 3))
    assert measure_ceiling(model, "cuda:0", (1, 8), 0.1) == Ceiling((SMALL,))
    assert " ".join(commands[0]).endswith("--batches 1 8")


def test_a_way_that_onnx_runtime_refuses_does_not_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way is a session of its own, which fails where it cannot be had; plans are made as Stoker makes them."""
    opened: dict[str, Any] = {}

    def open_session(model: Path, _: Any, providers: Any, enable_fallback: int) -> Any:
        opened[way] = providers[0][1]
        assert enable_fallback == 0
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    args = argparse.Namespace(model=Path("model.onnx"), precision="fp16")
    for way in WAYS:
        _Bench(args, "cuda", way, args.model)
    common = {"device_id": "0", "use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"}
    assert opened["bound"] == common
    assert opened["nhwc graph"] == common | {"prefer_nhwc": "1", "enable_cuda_graph": "1"}


def test_steps_are_timed_apart() -> None:
    """The rate with copies counts all steps of a run; without copies there is computing alone."""
    figures = _figures(10, "bound", [0.5, 0.5], [[0.1, 0.3, 0.2], [0.5, 0.5, 0.5], [0.1, 0.1, 0.1]])
    assert figures.rows_per_s == 20
    assert figures.copied_rows_per_s == pytest.approx(30 / 2.4)
    assert (figures.copy_in_ms, figures.compute_ms, figures.copy_out_ms) == pytest.approx((200, 500, 100))
    assert _figures(10, "bound", [0.5], [[0.5]]).copy_in_ms == 0
    order: list[str] = []
    taken_s = _repeat_steps([lambda: order.append("in"), lambda: order.append("run")], seconds=0)
    assert order == ["in", "run"]
    assert [len(step) for step in taken_s] == [1, 1]
