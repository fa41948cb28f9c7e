"""The ONNX model that a bench serves, and its expected outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stoker_bench.errors import BenchedServerError
from stoker_bench.networks.onnx_graphs import INPUT_NAME, WIDTHS, seeded_mlp


class ServedModel(Struct, frozen=True):
    """A model of one float32 input.

    Attributes:
        outputs: Computes the first output [n, outputs] for rows [n, *row_shape].
    """

    name: str
    path: Path
    input_name: str
    row_shape: tuple[int, ...]
    outputs: Callable[[NDArray[np.float32]], NDArray[np.float32]]


def seeded_model(folder: Path) -> ServedModel:
    """Write the benchmark's own model into a folder."""
    mlp = seeded_mlp()
    path = folder / "mlp.onnx"
    mlp.save(path)
    return ServedModel("seeded MLP 784-300-100-10", path, INPUT_NAME, (WIDTHS[0],), mlp.logits)


def given_model(path: Path) -> ServedModel:
    """Take a model file.

    Raises:
        BenchedServerError: It is not there, or has other inputs than one of float32 with a fixed row shape.
    """
    import onnxruntime

    if not path.is_file():
        raise BenchedServerError(f"there is no model file {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tensor, *others = session.get_inputs()
    shape = tensor.shape[1:]
    if others or tensor.type != "tensor(float)" or not all(isinstance(size, int) for size in shape):
        raise BenchedServerError(
            f"{path} cannot be benched: a model with one float32 input of fixed row shape is needed, "
            f"this one takes {[(each.name, each.type, each.shape) for each in (tensor, *others)]}"
        )

    def outputs(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        first: NDArray[np.float32] = session.run(None, {tensor.name: rows})[0]
        return first.reshape(len(rows), -1)

    return ServedModel(path.name, path, tensor.name, tuple(shape), outputs)
