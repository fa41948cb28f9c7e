"""Sessions as functions of named tensors, and the description of their inputs and outputs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from stoker.deployment import Deployment
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.onnx.graph import MalformedModel, read_model
from stoker.runtimes.onnx.bfloat16 import with_bfloat16
from stoker.runtimes.onnx.sessions import DTYPES, raise_if_out_of_memory
from stoker.tensors import TensorInfo

# `Fail` stands for sizes that do not fit each other, and for faults of CUDA's libraries, whose names tell them apart.
_DEVICE_FAULT: Final = re.compile("CUDA|CUDNN|CUBLAS|CUFFT")
_SOURCE_POSITION: Final = re.compile(r"\S*\.(?:h|cc|cpp):[0-9]+ ")


def without_source_positions(message: str) -> str:
    """Return a message of ONNX Runtime without the files and lines of its source."""
    return _SOURCE_POSITION.sub("", message).strip()


class SessionTensors:
    """A session as a function of named tensors; strings are `bytes` outside and `str` inside."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = with_bfloat16(session)
        self._output_names = [value.name for value in session.get_outputs()]
        self._options = onnxruntime.RunOptions()
        # ONNX Runtime would also print each error in red, such as those for made-up inputs of each load.
        self._options.log_severity_level = 4

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run one batch; raise InvalidInput for sizes or contents that the model cannot take."""
        decoded = {name: _decode(name, array) for name, array in feeds.items()}
        try:
            outputs = self._session.run(self._output_names, decoded, self._options)
        except Exception as error:
            raise_if_out_of_memory(error)
            if not isinstance(error, (InvalidArgument, Fail)) or _DEVICE_FAULT.search(str(error)):
                raise
            raise InvalidInput.refused_by_model(_reason(error)) from error
        return {
            name: _encode(np.asarray(array)) for name, array in zip(self._output_names, outputs, strict=True)
        }


def _reason(error: Exception) -> str:
    """Return ONNX Runtime's message about its inputs, without its source positions."""
    reason = str(error).partition("Status Message: ")[2] or str(error).rpartition(" : ")[2]
    return without_source_positions(reason)


def _decode(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != object:
        return array
    try:
        return _each(array, bytes.decode)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name}: the strings of ONNX models are UTF-8, not {error.object[:20]!r}"
        ) from None


def _encode(array: np.ndarray) -> np.ndarray:
    return _each(array, str.encode) if array.dtype == object else array


def _each(array: np.ndarray, convert: Any) -> np.ndarray:
    converted = np.empty(array.size, object)
    converted[:] = [convert(element) for element in array.reshape(-1).tolist()]
    return converted.reshape(array.shape)


def tensor_info(value: onnxruntime.NodeArg, deployment: Deployment) -> TensorInfo:
    """Return name, dtype and shape of an input or output; raise LoadFailed for an element type that is not served."""
    dtype = DTYPES.get(value.type)
    if dtype is None:
        raise LoadFailed(
            f"{value.name!r} of {deployment.path} holds {value.type}, only numbers and strings are served"
        )
    sizes = value.shape if value.shape is not None else []
    return TensorInfo(value.name, dtype, tuple(size if isinstance(size, int) else -1 for size in sizes))


def session_inputs(
    session: onnxruntime.InferenceSession, deployment: Deployment, source: Path | bytes
) -> tuple[TensorInfo, ...]:
    """Return the inputs of a session; the file says whether an input without sizes is a scalar or has any rank."""
    inputs = tuple(tensor_info(value, deployment) for value in session.get_inputs())
    if all(info.shape for info in inputs):
        return inputs
    try:
        declared = read_model(source).graph.inputs
    except (MalformedModel, OSError):
        return inputs
    return tuple(dataclasses.replace(info, any_rank=declared.get(info.name, ()) is None) for info in inputs)


def share_first_axis(session: onnxruntime.InferenceSession) -> bool:
    """Whether the first axes of all inputs that name them have one name."""
    names = {value.shape[0] for value in session.get_inputs()}
    return len(names - {None}) <= 1
