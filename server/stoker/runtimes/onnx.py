"""ONNX models by ONNX Runtime."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.companions import sample_feeds
from stoker.isolation.onnx.model_file import MalformedModel, read_model
from stoker.isolation.onnx.reading import read_onnx
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.declared import as_declared, is_reshaped
from stoker.runtimes.onnx_cuda import cuda_runtime
from stoker.runtimes.onnx_executions import CopiedExecution
from stoker.runtimes.onnx_float16 import as_float16, check_float16
from stoker.runtimes.onnx_sequences import DeclaredSession, SequenceSession, check_batched, declared_rows
from stoker.runtimes.onnx_sessions import DTYPES, OnnxSessions, raise_if_out_of_memory
from stoker.runtimes.onnx_zipmap import with_tensors_for_maps
from stoker.runtimes.sequences import sequence_runtime
from stoker.runtimes.serving_way import as_runtime
from stoker.servable import Device, Servable
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import ModelTensors, Signature, TensorInfo

__all__ = ["load_onnx"]

logger = logging.getLogger(__name__)

# `Fail` is what a kernel says of sizes that do not fit each other, and what CUDA's libraries end in too.
_DEVICE_FAULT = re.compile("CUDA|CUDNN|CUBLAS|CUFFT")
_PLACE = re.compile(r"\S*\.(?:h|cc|cpp):[0-9]+ ")
_MOST_WORDS = 500
_MAPS = "seq(map("


def load_onnx(servable: Servable, device: Device, threads: int) -> Runtime:
    """Load an ONNX file: row by row if its inputs are batches of rows of a fixed shape, else request by request.

    Raises:
        LoadFailed: The file cannot be loaded, or holds tensors of types that are not served.
        DeviceUnavailable: The provider that was asked for cannot be used.
    """
    on_cuda = device.kind == "cuda"
    converted = (
        on_cuda and servable.acceleration.precision == "fp16" and servable.acceleration.provider == "cuda"
    )
    source: Path | bytes = as_float16(servable.name, servable.path) if converted else servable.path
    sessions = OnnxSessions(servable, device, threads, source)
    session = sessions.open()
    labels: dict[str, tuple[str, ...]] = {}
    if any(value.type.startswith(_MAPS) for value in session.get_outputs()):
        source, labels = _without_maps(source)
        sessions = dataclasses.replace(sessions, model=source)
        session = sessions.open()
    if servable.sequence is not None:
        return _load_with_state(servable, session, servable.sequence)
    inputs = _inputs(session, servable, source)
    if not inputs:
        raise LoadFailed(f"{servable.path} has no inputs")
    if converted and not _runs_channels_last(servable.name, session, inputs):
        sessions = dataclasses.replace(sessions, channels_last=False)
        session = sessions.open()
    model = _SessionTensors(session)
    outputs = tuple(
        _labelled(_info(value, servable), labels.get(value.name, ()), servable)
        for value in session.get_outputs()
    )
    if on_cuda and servable.acceleration.precision == "fp16":
        original = partial(sessions.open_on_cpu, _without_maps(servable.path)[0] if labels else servable.path)
        check_float16(servable.name, model.run, lambda: _SessionTensors(original()).run, inputs)
    batched = all(info.shape[:1] == (-1,) for info in inputs) and _same_axis(session)
    tensors = ModelTensors(inputs, outputs, batched)

    def rows_runtime(signature: Signature) -> Runtime:
        if on_cuda:
            return cuda_runtime(sessions, session, signature)
        return CopiedExecution(session, signature)

    runtime = as_runtime(servable, model.run, tensors, rows_runtime, partial(read_onnx, source))
    if servable.zipmap == "objects":
        _check_objects(servable, runtime.signature.model_tensors)
    return runtime


def _load_with_state(
    servable: Servable, session: onnxruntime.InferenceSession, settings: SequenceSettings
) -> Runtime:
    """Load a model that keeps state for sequences; its rows are tried with states of all kinds beside each other."""
    rows = SequenceSession(session, servable, settings)
    inputs, outputs = (
        tuple(_info(value, servable) for value in side) for side in (rows.get_inputs(), rows.get_outputs())
    )

    declaration = declared_rows(servable.declaration, rows, inputs, outputs)
    run, tensors = as_declared(
        declaration, _SessionTensors(rows).run, ModelTensors(inputs, outputs, batched=True)
    )
    shown = DeclaredSession(run) if is_reshaped(declaration) else rows

    def rows_runtime(signature: Signature) -> Runtime:
        copied = CopiedExecution(shown, signature)
        return sequence_runtime(servable.name, copied, settings, rows.controls, servable.path.parent)

    # What is declared has been applied, and is that of rows.
    plain = dataclasses.replace(servable, declaration=None)
    runtime = as_runtime(plain, run, tensors, rows_runtime, sampled=False)
    check_batched(servable, runtime)
    return runtime


def _runs_channels_last(
    name: str, session: onnxruntime.InferenceSession, inputs: Sequence[TensorInfo]
) -> bool:
    """Whether cuDNN can run each convolution of a float16 model in this layout, for which it has fewer algorithms."""
    try:
        _SessionTensors(session).run(sample_feeds(inputs, 2))
    except OutOfMemory:
        return True
    except Exception as error:  # noqa: BLE001  # whatever else it may be is met again by who can say so
        if "CUDNN" not in str(error):
            return True
        logger.warning(
            "%s: its images are kept with the channels first, which is slower: cuDNN cannot run it with the "
            "channels last: %s",
            name,
            _PLACE.sub("", str(error))[:_MOST_WORDS],
        )
        return False
    return True


class _SessionTensors:
    """A session as a function of named tensors; strings are `bytes` outside and `str` inside."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._output_names = [value.name for value in session.get_outputs()]
        self._options = onnxruntime.RunOptions()
        # What a model refuses is raised, and answered or logged by who knows whose it was; ONNX Runtime would print
        # it in red besides, at each load for inputs that were made up.
        self._options.log_severity_level = 4

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run one batch; raises InvalidInput for tensors that the model cannot take, by their sizes or contents."""
        decoded = {name: _decoded(name, array) for name, array in feeds.items()}
        try:
            outputs = self._session.run(self._output_names, decoded, self._options)
        except Exception as error:
            raise_if_out_of_memory(error)
            if not isinstance(error, (InvalidArgument, Fail)) or _DEVICE_FAULT.search(str(error)):
                raise
            raise InvalidInput.refused_by_model(_reason(error)) from error
        return {
            name: _encoded(np.asarray(array)) for name, array in zip(self._output_names, outputs, strict=True)
        }


def _reason(error: Exception) -> str:
    """What ONNX Runtime says of its inputs, without its own places."""
    reason = str(error).partition("Status Message: ")[2] or str(error).rpartition(" : ")[2]
    return _PLACE.sub("", reason).strip()


def _decoded(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != object:
        return array
    try:
        return _each(array, bytes.decode)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name}: the strings of ONNX models are UTF-8, not {error.object[:20]!r}"
        ) from None


def _encoded(array: np.ndarray) -> np.ndarray:
    return _each(array, str.encode) if array.dtype == object else array


def _each(array: np.ndarray, convert: Any) -> np.ndarray:
    converted = np.empty(array.size, object)
    converted[:] = [convert(element) for element in array.reshape(-1).tolist()]
    return converted.reshape(array.shape)


def _info(value: onnxruntime.NodeArg, servable: Servable) -> TensorInfo:
    dtype = DTYPES.get(value.type)
    if dtype is None:
        raise LoadFailed(
            f"{value.name!r} of {servable.path} holds {value.type}, only numbers and strings are served"
        )
    sizes = value.shape if value.shape is not None else []
    return TensorInfo(value.name, dtype, tuple(size if isinstance(size, int) else -1 for size in sizes))


def _without_maps(model: Path | bytes) -> tuple[Path | bytes, dict[str, tuple[str, ...]]]:
    """The model with tensors for final maps, and what their columns are called."""
    try:
        return with_tensors_for_maps(model) or (model, {})
    except (MalformedModel, OSError):
        return model, {}


def _labelled(info: TensorInfo, labels: tuple[str, ...], servable: Servable) -> TensorInfo:
    """An output with what its columns are called, and as many of them if the file does not say its sizes."""
    shape = info.shape or ((-1, len(labels)) if labels else ())
    as_objects = bool(labels) and servable.zipmap == "objects"
    return dataclasses.replace(info, shape=shape, labels=labels, as_objects=as_objects)


def _check_objects(servable: Servable, tensors: ModelTensors | None) -> None:
    """Raise LoadFailed unless some output is written as objects, and each that is has a column for each of them."""
    found = [info for info in (tensors.outputs if tensors is not None else ()) if info.as_objects]
    if not found:
        raise LoadFailed(
            f"{servable.path} has no output that is a ZipMap with named classes: leave zipmap out for "
            f"{servable.name}"
        )
    for info in found:
        if not info.shape or info.shape[-1] not in (-1, len(info.labels)):
            raise LoadFailed(
                f"{servable.path} gives {info}, which cannot be written as objects with its "
                f"{len(info.labels)} classes: leave zipmap out for {servable.name}"
            )


def _inputs(
    session: onnxruntime.InferenceSession, servable: Servable, source: Path | bytes
) -> tuple[TensorInfo, ...]:
    """What a session takes; of an input without sizes the file says whether it is a scalar or has any rank."""
    inputs = tuple(_info(value, servable) for value in session.get_inputs())
    if all(info.shape for info in inputs):
        return inputs
    try:
        declared = read_model(source).graph.inputs
    except (MalformedModel, OSError):
        return inputs
    return tuple(dataclasses.replace(info, any_rank=declared.get(info.name, ()) is None) for info in inputs)


def _same_axis(session: onnxruntime.InferenceSession) -> bool:
    """Whether the names of the inputs' first axes, where they have any, are one name."""
    names = {value.shape[0] for value in session.get_inputs()}
    return len(names - {None}) <= 1
