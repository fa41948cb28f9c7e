"""Loads ONNX files: chooses their graph, session, precision and execution."""

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

from stoker.deployment import Deployment, Device
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.companions import sample_feeds
from stoker.isolation.onnx.analysis import analyse_onnx
from stoker.isolation.onnx.graph import MalformedModel, read_model
from stoker.runtimes.base import ChosenRuntime, OutOfMemory, Runtime
from stoker.runtimes.onnx.bfloat16 import with_bfloat16
from stoker.runtimes.onnx.cuda import cuda_runtime
from stoker.runtimes.onnx.executions import CopiedExecution
from stoker.runtimes.onnx.graphs import ChosenGraph, graph_of
from stoker.runtimes.onnx.precision import is_compared
from stoker.runtimes.onnx.sequences import DeclaredSession, SequenceSession, check_batched, declared_rows
from stoker.runtimes.onnx.sessions import CHANNELS_LAST, DTYPES, OnnxSessions, raise_if_out_of_memory
from stoker.runtimes.onnx.zip_maps import replace_maps_by_tensors
from stoker.runtimes.precision import check_precision
from stoker.runtimes.sequences import sequence_runtime
from stoker.runtimes.wrapping import apply_declaration, is_reshaped, wrap_model
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import ModelTensors, Signature, TensorInfo

logger = logging.getLogger(__name__)

# `Fail` is what a kernel says of sizes that do not fit each other, and what CUDA's libraries end in too.
_DEVICE_FAULT = re.compile("CUDA|CUDNN|CUBLAS|CUFFT")
_PLACE = re.compile(r"\S*\.(?:h|cc|cpp):[0-9]+ ")
_MOST_WORDS = 500
_MAPS = "seq(map("


def load_onnx(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Load an ONNX file: row by row if its inputs are batches of rows of a fixed shape, else request by request.

    Raises:
        LoadFailed: The file cannot be loaded, or holds tensors of types that are not served.
        DeviceUnavailable: The provider that was asked for cannot be used.
    """
    on_cuda = device.kind == "cuda"
    graph = graph_of(deployment, device, threads)
    source = graph.model
    sessions = OnnxSessions(deployment, device, threads, source)
    session = sessions.open()
    labels: dict[str, tuple[str, ...]] = {}
    if any(value.type.startswith(_MAPS) for value in session.get_outputs()):
        source, labels = _without_maps(source)
        sessions = dataclasses.replace(sessions, model=source)
        session = sessions.open()
    if deployment.sequence is not None:
        return _load_with_state(deployment, session, deployment.sequence)
    inputs = _inputs(session, deployment, source)
    if not inputs:
        raise LoadFailed(f"{deployment.path} has no inputs")
    precision = deployment.acceleration.precision
    if on_cuda and precision in CHANNELS_LAST and not _runs_channels_last(deployment.name, session, inputs):
        sessions = dataclasses.replace(sessions, channels_last=False)
        session = sessions.open()
    model = _SessionTensors(session)
    outputs = tuple(
        _labelled(_info(value, deployment), labels.get(value.name, ()), deployment)
        for value in session.get_outputs()
    )
    original: Path | bytes = _without_maps(deployment.path)[0] if labels else deployment.path
    difference = None
    if on_cuda and is_compared(precision, deployment.path):
        reference = partial(sessions.open_on_cpu, original)
        difference = check_precision(
            deployment.name, precision, model.run, lambda: _SessionTensors(reference()).run, inputs
        )
    batched = all(info.shape[:1] == (-1,) for info in inputs) and _same_axis(session)
    tensors = ModelTensors(inputs, outputs, batched)

    def rows_runtime(signature: Signature) -> Runtime:
        if on_cuda:
            return cuda_runtime(sessions, session, signature)
        return CopiedExecution(session, signature)

    computed_in = deployment.acceleration.precision if on_cuda else None
    read = partial(analyse_onnx, original)
    runtime = wrap_model(deployment, model.run, tensors, rows_runtime, read, computed_in=computed_in)
    if on_cuda and isinstance(runtime, ChosenRuntime):
        # Requests with tensors of free sizes are plain calls.
        runtime.choice = (
            f"{runtime.choice or CopiedExecution.choice}; {_in_words(graph, precision, difference)}"
        )
    if deployment.zipmap == "objects":
        _check_objects(deployment, runtime.signature.model_tensors)
    return runtime


def _in_words(graph: ChosenGraph, precision: str, difference: float | None) -> str:
    """Describe a model's computation, as the next clauses of its line in the log."""
    if difference is None:
        compared = "not compared with float32 on the CPU"
    else:
        compared = f"outputs differ from float32 on the CPU by {difference:.2g} of the largest one"
    return f"graph {'fused' if graph.is_fused else 'as it is'}; precision {precision}, {compared}"


def _load_with_state(
    deployment: Deployment, session: onnxruntime.InferenceSession, settings: SequenceSettings
) -> Runtime:
    """Load a model that keeps state for sequences; its rows are tried with states of all kinds beside each other."""
    rows = SequenceSession(session, deployment, settings)
    inputs, outputs = (
        tuple(_info(value, deployment) for value in side) for side in (rows.get_inputs(), rows.get_outputs())
    )

    declaration = declared_rows(deployment.declaration, rows, inputs, outputs)
    run, tensors = apply_declaration(
        declaration, _SessionTensors(rows).run, ModelTensors(inputs, outputs, batched=True)
    )
    shown = DeclaredSession(run) if is_reshaped(declaration) else rows

    def rows_runtime(signature: Signature) -> Runtime:
        copied = CopiedExecution(shown, signature)
        return sequence_runtime(deployment.name, copied, settings, rows.controls, deployment.path.parent)

    # What is declared has been applied, and is that of rows.
    plain = dataclasses.replace(deployment, declaration=None)
    runtime = wrap_model(plain, run, tensors, rows_runtime, sampled=False)
    check_batched(deployment, runtime)
    return runtime


def _runs_channels_last(
    name: str, session: onnxruntime.InferenceSession, inputs: Sequence[TensorInfo]
) -> bool:
    """Whether cuDNN can run each convolution of a model in this layout, for which it has fewer algorithms."""
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
        self._session = with_bfloat16(session)
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
    """Return ONNX Runtime's message about its inputs, without its source positions."""
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


def _info(value: onnxruntime.NodeArg, deployment: Deployment) -> TensorInfo:
    dtype = DTYPES.get(value.type)
    if dtype is None:
        raise LoadFailed(
            f"{value.name!r} of {deployment.path} holds {value.type}, only numbers and strings are served"
        )
    sizes = value.shape if value.shape is not None else []
    return TensorInfo(value.name, dtype, tuple(size if isinstance(size, int) else -1 for size in sizes))


def _without_maps(model: Path | bytes) -> tuple[Path | bytes, dict[str, tuple[str, ...]]]:
    """The model with tensors for final maps, and what their columns are called."""
    try:
        return replace_maps_by_tensors(model) or (model, {})
    except (MalformedModel, OSError):
        return model, {}


def _labelled(info: TensorInfo, labels: tuple[str, ...], deployment: Deployment) -> TensorInfo:
    """An output with what its columns are called, and as many of them if the file does not say its sizes."""
    shape = info.shape or ((-1, len(labels)) if labels else ())
    as_objects = bool(labels) and deployment.zipmap == "objects"
    return dataclasses.replace(info, shape=shape, labels=labels, as_objects=as_objects)


def _check_objects(deployment: Deployment, tensors: ModelTensors | None) -> None:
    """Raise LoadFailed unless some output is written as objects, and each that is has a column for each of them."""
    found = [info for info in (tensors.outputs if tensors is not None else ()) if info.as_objects]
    if not found:
        raise LoadFailed(
            f"{deployment.path} has no output that is a ZipMap with named classes: leave zipmap out for "
            f"{deployment.name}"
        )
    for info in found:
        if not info.shape or info.shape[-1] not in (-1, len(info.labels)):
            raise LoadFailed(
                f"{deployment.path} gives {info}, which cannot be written as objects with its "
                f"{len(info.labels)} classes: leave zipmap out for {deployment.name}"
            )


def _inputs(
    session: onnxruntime.InferenceSession, deployment: Deployment, source: Path | bytes
) -> tuple[TensorInfo, ...]:
    """Return the inputs of a session; the file says whether an input without sizes is a scalar or has any rank."""
    inputs = tuple(_info(value, deployment) for value in session.get_inputs())
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
