"""Sessions of models with `bfloat16` tensors, for which ONNX Runtime's Python package has no arrays."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime

from stoker.errors import LoadFailed

_TYPE: Final = "tensor(bfloat16)"
_ELEMENT_TYPE: Final = 16
"""The number of bfloat16 in ONNX."""


class Bfloat16Session:
    """A session whose `run` takes and returns arrays of `bfloat16` too."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, np.ndarray],
        options: onnxruntime.RunOptions | None = None,
    ) -> list[np.ndarray]:
        """Run one batch; see `onnxruntime.InferenceSession.run`."""
        values = {name: _value_of(array) for name, array in feeds.items()}
        return [_array_of(value) for value in self._session.run_with_ort_values(names, values, options)]


def with_bfloat16(session: Any) -> Any:
    """Return a session whose `run` takes and returns arrays of all dtypes of its model.

    Raises:
        LoadFailed: The model takes strings too, which ONNX Runtime cannot bind beside `bfloat16`.
    """
    if not isinstance(session, onnxruntime.InferenceSession):
        return session
    inputs = session.get_inputs()
    if not any(value.type == _TYPE for value in (*inputs, *session.get_outputs())):
        return session
    for value in inputs:
        if value.type == "tensor(string)":
            raise LoadFailed(
                f"the input {value.name!r} holds strings: ONNX Runtime's Python package does not take them beside "
                "bfloat16; cast to float32 in the model"
            )
    return Bfloat16Session(session)


def element_type(dtype: np.dtype[Any]) -> Any:
    """Return a dtype in the form of `IOBinding`."""
    return _ELEMENT_TYPE if dtype.kind == "V" else dtype


def _value_of(array: np.ndarray) -> onnxruntime.OrtValue:
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "V":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ELEMENT_TYPE)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _array_of(value: Any) -> np.ndarray:
    if value.data_type() != _TYPE:
        array: np.ndarray = value.numpy()
        return array
    from ml_dtypes import bfloat16

    shape = value.shape()
    content = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    # A copy is writable, as other outputs are.
    return np.frombuffer(bytearray(content), bfloat16).reshape(shape)
