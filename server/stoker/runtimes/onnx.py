"""ONNX models by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime

from stoker.errors import DeviceUnavailable, LoadFailed
from stoker.servable import Device, Servable
from stoker.tensors import Signature, TensorSpec

__all__ = ["OnnxRuntime", "onnx_signature"]

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}


class OnnxRuntime:
    """One ONNX Runtime session.

    Raises:
        LoadFailed: The file cannot be loaded, or its inputs are not batches of rows of a fixed shape.
        DeviceUnavailable: The CUDA provider was asked for and cannot be used.
    """

    def __init__(self, servable: Servable, device: Device, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Idle threads that spin take the core from the frontends.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(servable.path), options, providers=_providers(device)
            )
        except Exception as error:
            raise LoadFailed(f"ONNX Runtime cannot load {servable.path}: {error}") from error
        if device.kind == "cuda" and "CUDAExecutionProvider" not in self._session.get_providers():
            raise DeviceUnavailable(f"ONNX Runtime did not use {device} for {servable.name}")
        self.signature = onnx_signature(self._session, servable)
        self._input_names = [spec.name for spec in self.signature.inputs]
        self._output_names = [spec.name for spec in self.signature.outputs]

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        feeds = dict(zip(self._input_names, inputs, strict=True))
        outputs: list[np.ndarray] = self._session.run(self._output_names, feeds)
        return outputs


def _providers(device: Device) -> list[str | tuple[str, dict[str, str]]]:
    if device.kind == "cpu":
        return ["CPUExecutionProvider"]
    cuda = {
        "device_id": str(device.index),
        # The default strategy doubles the arena, which never shrinks again.
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    return [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]


def onnx_signature(session: onnxruntime.InferenceSession, servable: Servable) -> Signature:
    """Read the signature of a session; outputs of unknown row shape are learned from a run on zeros."""
    inputs = tuple(_input_spec(value, servable) for value in session.get_inputs())
    if not inputs:
        raise LoadFailed(f"{servable.path} has no inputs")
    zeros = {spec.name: np.zeros((2, *spec.shape), spec.dtype) for spec in inputs}
    try:
        results = session.run(None, zeros)
    except Exception as error:
        raise LoadFailed(f"{servable.path} fails on a batch of two rows of zeros: {error}") from error
    outputs = []
    for value, result in zip(session.get_outputs(), results, strict=True):
        array = np.asarray(result)
        if array.ndim == 0 or array.shape[0] != 2:
            raise LoadFailed(
                f"output {value.name!r} of {servable.path} has shape {list(array.shape)} for a batch of 2 rows; "
                "its first axis must be the batch"
            )
        if array.dtype.name not in _DTYPES.values():
            raise LoadFailed(
                f"output {value.name!r} of {servable.path} holds {array.dtype}, only numbers are served"
            )
        outputs.append(TensorSpec(value.name, array.dtype.name, array.shape[1:]))
    return Signature(inputs, tuple(outputs))


def _input_spec(value: onnxruntime.NodeArg, servable: Servable) -> TensorSpec:
    dtype = _DTYPES.get(value.type)
    if dtype is None:
        raise LoadFailed(
            f"input {value.name!r} of {servable.path} holds {value.type}, only numbers are served"
        )
    shape = list(value.shape)
    if not shape or isinstance(shape[0], int):
        raise LoadFailed(
            f"input {value.name!r} of {servable.path} has shape {shape}; its first axis must be a dynamic batch axis"
        )
    if any(not isinstance(size, int) for size in shape[1:]):
        raise LoadFailed(
            f"input {value.name!r} of {servable.path} has shape {shape}; only the batch axis may be dynamic. "
            "Fix the other sizes when the model is exported, or serve it with an entry script."
        )
    return TensorSpec(value.name, dtype, tuple(shape[1:]))
