"""Batches of a signature with and without XLA; TensorFlow itself is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cuda_puppets import DOUBLES

from stoker.errors import LoadFailed
from stoker.runtimes.tensorflow import TensorFlowRuntime


class _Rows:
    """A model y = 2 x; its compiled form is y = factor * x. `ran` records the form of each run."""

    def __init__(self, factor: float = 2) -> None:
        self.factor = factor
        self.ran: list[Any] = []

    def compile(self, rows: int) -> Any:
        if self.factor == 0:
            raise ValueError("Detected unsupported operations when trying to compile graph: StringJoin")
        return f"compiled for {rows}"

    def run(self, feeds: Any, compiled: Any = None) -> dict[str, np.ndarray]:
        self.ran.append(compiled)
        return {"y": feeds["x"] * np.float32(2 if compiled is None else self.factor)}


def test_batches_of_compiled_sizes_run_compiled() -> None:
    """Batches of other sizes run without XLA; a fork shares the compiled forms."""
    model: Any = _Rows()
    runtime = TensorFlowRuntime(model, DOUBLES)
    runtime.compile("doubler", (1, 4))
    model.ran.clear()
    for each in (runtime, runtime.fork()):
        for rows in (1, 3, 4):
            each.run([np.ones((rows, 3), np.float32)])
    assert model.ran == ["compiled for 1", None, "compiled for 4"] * 2


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (3, "compiled with XLA its outputs differ by 0.5"),
        (0, "XLA cannot compile it for 1 rows: Detected unsupp"),
    ],
)
def test_model_that_xla_cannot_compile_is_refused(factor: float, reason: str) -> None:
    """XLA fails, or its outputs differ."""
    model: Any = _Rows(factor)
    with pytest.raises(LoadFailed) as failed:
        TensorFlowRuntime(model, DOUBLES).compile("doubler", (1, 4))
    assert reason in str(failed.value)


def test_xla_without_sizes_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """On the CPU batches have any size unless `batch_buckets` sets sizes."""
    model: Any = _Rows()
    TensorFlowRuntime(model, DOUBLES).compile("doubler", ())
    assert "doubler: xla does nothing without batch_buckets" in caplog.text
    assert model.ran == []
