"""ONNX models of float32 computed in float16: converted at load, and compared with what they were."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.isolation.companions import sample_feeds
from stoker.isolation.difference import largest_difference
from stoker.runtimes.packed import Run
from stoker.system.extras import how_to_install
from stoker.tensors import TensorInfo

__all__ = ["as_float16", "check_float16"]

logger = logging.getLogger(__name__)

_MOST_BYTES: Final = (1 << 31) - (1 << 20)
"""A little less than what a serialised message may have: the graph needs some of it."""
_TOLERANCE: Final = 5e-2


def as_float16(name: str, path: Path) -> bytes:
    """Convert a model's float32 weights and operators to float16; its inputs and outputs stay as they are.

    Operators that have no float16 form, or lose too much by it, stay in float32 between casts. A model without
    float32 weights is taken as it is.

    Args:
        name: The model's name, for messages.
        path: The ONNX file.

    Returns:
        The converted model, serialised.

    Raises:
        LoadFailed: The `onnx` package is missing, the model is too large, or it cannot be converted.
    """
    try:
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16
    except ImportError as error:
        raise LoadFailed(
            f"{name}: precision: fp16 converts the model with the onnx package ({error}); {how_to_install('fp16')}"
        ) from error
    try:
        model = onnx.load(str(path))
    except Exception as error:
        raise LoadFailed(f"{name}: {path} cannot be read: {error}") from error
    if _weight_bytes(model) > _MOST_BYTES:
        raise LoadFailed(
            f"{name}: precision: fp16 converts models of up to 2 GiB when they are loaded; convert this one "
            "beforehand, and leave the setting out"
        )
    if not any(tensor.data_type == onnx.TensorProto.FLOAT for tensor in model.graph.initializer):
        # Somebody has converted it: a second time gives a graph with two nodes of one name.
        unchanged: bytes = model.SerializeToString()
        return unchanged
    try:
        converted: bytes = convert_float_to_float16(model, keep_io_types=True).SerializeToString()
    except Exception as error:
        raise LoadFailed(f"{name}: {path} cannot be converted to float16: {error}") from error
    return converted


def _weight_bytes(model: Any) -> int:
    return sum(len(tensor.raw_data) + 4 * len(tensor.float_data) for tensor in model.graph.initializer)


def check_float16(name: str, run: Run, reference: Callable[[], Run], inputs: Sequence[TensorInfo]) -> None:
    """Compare a model in float16 with the original on two made-up rows, and log the largest difference.

    Args:
        name: The model's name.
        run: The model in float16.
        reference: Loads the original; not called if there are no made-up rows that the model takes.
        inputs: What both take.

    Raises:
        LoadFailed: They differ by more than 5 % of the largest output, or float16 overflows.
    """
    feeds = sample_feeds(inputs, 2)
    try:
        outputs = run(feeds)
    except Exception as error:  # noqa: BLE001  # whatever a model raises on inputs that were made up
        logger.warning(
            "%s: its answers in float16 cannot be compared, for it refuses made-up rows: %s", name, error
        )
        return
    expected = reference()(feeds)
    for key, array in outputs.items():
        if array.dtype.kind == "f" and np.isfinite(expected[key]).all() and not np.isfinite(array).all():
            raise LoadFailed(
                f"{name}: in float16 the output {key!r} is not finite, its numbers are too large; use precision: tf32"
            )
    difference = _largest(outputs, expected)
    if difference > _TOLERANCE:
        raise LoadFailed(
            f"{name}: in float16 its outputs differ by {difference:.2g} of the largest one; use precision: tf32"
        )
    logger.info("%s: in float16 its outputs differ by %.2g of the largest one", name, difference)


def _largest(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest relative difference of numbers with a fraction; others may turn with the last bit of them."""
    names = [name for name, array in expected.items() if array.dtype.kind == "f"]
    return largest_difference([outputs[name] for name in names], [expected[name] for name in names])
