"""Classifiers of digits for the console: one that needs no data, one that has learned MNIST where that is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.tiny_models import read_idx

__all__ = ["MNIST", "learned", "segments", "write_digits"]

MNIST: Final = Path(
    os.environ.get("STOKER_TEST_MNIST", Path(__file__).parents[3] / "shared" / "data" / "mnist")
)
# Bars of a seven-segment display that each digit lights: top, both above, middle, both below, bottom.
_LIT: Final = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)
_BARS: Final = (
    (slice(4, 7), slice(9, 19)), (slice(4, 14), slice(8, 11)), (slice(4, 14), slice(17, 20)),
    (slice(13, 15), slice(9, 19)),
    (slice(14, 24), slice(8, 11)), (slice(14, 24), slice(17, 20)), (slice(21, 24), slice(9, 19)),
)  # fmt: skip


def segments() -> tuple[np.ndarray, np.ndarray]:
    """Weights `[784, 10]` and bias of a classifier of a display's digits; its 1 stands in the middle."""
    weights = np.zeros((10, 28, 28), np.float32)
    for digit, lit in enumerate(_LIT):
        for bar, (rows, columns) in zip(lit, _BARS, strict=True):
            if bar == "1":
                weights[digit, rows, columns] = 1
    weights[1] = 0
    weights[1, 4:24, 12:16] = 1
    # Ink elsewhere speaks against a digit.
    weights -= 0.5
    return 0.1 * weights.reshape(10, 784).T, np.zeros(10, np.float32)


def learned(steps: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias that softmax regression learns of the training images."""
    images = read_idx(MNIST / "train-images-idx3-ubyte.gz").reshape(-1, 784).astype(np.float32) / 255
    classes = np.eye(10, dtype=np.float32)[read_idx(MNIST / "train-labels-idx1-ubyte.gz")]
    weights, bias, chance = (
        np.zeros((784, 10), np.float32),
        np.zeros(10, np.float32),
        np.random.default_rng(0),
    )
    for _ in range(steps):
        chosen = chance.integers(0, len(images), 256)
        scores = images[chosen] @ weights + bias
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (likely / likely.sum(axis=1, keepdims=True) - classes[chosen]) / len(chosen)
        weights -= images[chosen].T @ error
        bias -= error.sum(axis=0)
    return weights, bias


def write_digits(path: Path, parameters: tuple[np.ndarray, np.ndarray]) -> Path:
    """Write a classifier, `x` float32[rows, 784] to `scores` float32[rows, 10], as ONNX."""
    weights, bias = parameters
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
        ],
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 784])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 10])],
        [numpy_helper.from_array(weights.astype(np.float32), "w"), numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
