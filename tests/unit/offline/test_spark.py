"""Scoring on Spark: one model in each worker, on the GPU of its task."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.tiny_models import write_doubler

from stoker.offline import spark


def test_frames_are_scored_by_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several partitions load the model once; frames without rows are passed over."""
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    module: Any = sys.modules["stoker.offline.spark"]
    loaded: list[tuple[Any, ...]] = []
    predictor = module.Predictor

    def load(*arguments: Any, **options: Any) -> Any:
        loaded.append(arguments)
        return predictor(arguments[0], "cpu", **options)

    monkeypatch.setattr(module, "Predictor", load)
    monkeypatch.setattr(module, "_loaded", {})
    task = SimpleNamespace(resources=lambda: {"gpu": SimpleNamespace(addresses=["1"])})
    context = SimpleNamespace(get=lambda: task)
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(TaskContext=context))
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    frame = pd.DataFrame({"id": [1, 2], "x": list(rows)})
    score = spark(write_doubler(tmp_path / "doubler.onnx"), keep=("id",))
    for _partition in range(2):
        first, second = score(iter([frame, frame[:0], frame]))
        assert first["id"].tolist() == [1, 2]
        assert np.stack(list(second["y"])).tobytes() == (2 * rows).tobytes()
    assert loaded == [(str(tmp_path / "doubler.onnx"), "cuda:1")]
    context.get = lambda: None
    list(score(iter([frame])))
    assert loaded[1:] == [(str(tmp_path / "doubler.onnx"), "auto")]
