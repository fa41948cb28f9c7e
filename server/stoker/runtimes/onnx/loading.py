"""Loading an ONNX file as a runtime."""

from __future__ import annotations

import dataclasses
import logging
import timeit
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import onnxruntime

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.isolation.made_up_rows import sample_feeds
from stoker.isolation.onnx.analysis import analyse_onnx
from stoker.runtimes.base import ChosenRuntime, OutOfMemory, Runtime
from stoker.runtimes.declarations import apply_declaration
from stoker.runtimes.onnx.cuda import cuda_runtime
from stoker.runtimes.onnx.executions import CopiedExecution
from stoker.runtimes.onnx.graphs import ChosenGraph, choose_graph, find_difference
from stoker.runtimes.onnx.precision import is_compared
from stoker.runtimes.onnx.sequences import SequenceSession, check_batched, declared_rows
from stoker.runtimes.onnx.session_tensors import (
    SessionTensors,
    session_inputs,
    share_first_axis,
    tensor_info,
    without_source_positions,
)
from stoker.runtimes.onnx.sessions import CHANNELS_LAST, OnnxSessions
from stoker.runtimes.onnx.shared_cores import share_cores
from stoker.runtimes.onnx.zipmap import check_objects, label_columns, without_maps
from stoker.runtimes.packed import Run
from stoker.runtimes.precision import check_precision, describe_difference
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.runtimes.sequence_runtime import keep_state
from stoker.runtimes.text import TextRuntime
from stoker.runtimes.wrapping import wrap_model
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import ModelTensors, Signature, TensorInfo

logger = logging.getLogger(__name__)

_MOST_CHARACTERS: Final = 500
_MAPS: Final = "seq(map("
_SHORT_S: Final = 0.5e-3
_SHORT_ROWS: Final = 64
"""Where a batch of so many rows takes no longer, handing its operations to threads costs more than it saves."""


def load_onnx(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Load an ONNX file: row by row if its inputs are batches of rows of a fixed shape, else request by request.

    Raises:
        LoadFailed: The file cannot be loaded, or holds tensors of types that are not served.
        DeviceUnavailable: The provider of the settings cannot be used.
    """
    on_cuda = device.kind == "cuda"
    graph = choose_graph(deployment, device, threads)
    source = graph.model
    spins = deployment.text is not None and not on_cuda
    sessions = OnnxSessions(deployment, device, threads, source, spins=spins)
    session = sessions.open()
    labels: dict[str, tuple[str, ...]] = {}
    if any(value.type.startswith(_MAPS) for value in session.get_outputs()):
        source, labels = without_maps(source)
        sessions = msgspec.structs.replace(sessions, model=source)
        session = sessions.open()
    if deployment.sequence is not None:
        return _load_with_state(deployment, session, deployment.sequence)
    inputs = session_inputs(session, deployment, source)
    if not inputs:
        raise LoadFailed(f"{deployment.path} has no inputs")
    fitting = _fit_options(sessions, session, inputs)
    if fitting is not sessions:
        sessions, session = fitting, fitting.open()
    precision = deployment.acceleration.precision
    model = SessionTensors(session)
    outputs = tuple(
        label_columns(tensor_info(value, deployment), labels.get(value.name, ()), deployment)
        for value in session.get_outputs()
    )
    original: Path | bytes = without_maps(deployment.path)[0] if labels else deployment.path
    difference = None
    if on_cuda and is_compared(precision, deployment.path):
        reference = partial(_run_on_cpu, sessions, original)
        compare = partial(check_precision, deployment.name, precision, model.run, reference, inputs)
        difference = find_difference(deployment, device, compare)
    batched = all(info.shape[:1] == (-1,) for info in inputs) and share_first_axis(session)
    tensors = ModelTensors(inputs, outputs, batched)

    def rows_runtime(signature: Signature) -> Runtime:
        if on_cuda:
            return cuda_runtime(sessions, session, signature)
        return CopiedExecution(session, signature)

    computed_in = deployment.acceleration.precision if on_cuda else None
    read = partial(analyse_onnx, original)
    run, instances = share_cores(model.run, sessions)
    runtime = wrap_model(deployment, run, tensors, rows_runtime, read, computed_in=computed_in)
    if isinstance(runtime, TextRuntime) and not on_cuda:
        _fit_to_cpu(runtime, instances)
    if on_cuda and isinstance(runtime, ChosenRuntime):
        # Models with free sizes have no choice: they run by plain calls.
        runtime.choice = (
            f"{runtime.choice or CopiedExecution.choice}; {_in_words(graph, precision, difference)}"
        )
    if deployment.zipmap == "objects":
        check_objects(deployment, runtime.signature.model_tensors)
    return runtime


def _fit_to_cpu(runtime: TextRuntime, instances: int) -> None:
    """Run so many batches at the same time, and prepare for no shape."""
    runtime.instances = instances
    if runtime.costs is not None:
        runtime.costs = msgspec.structs.replace(runtime.costs, rounds_up=False)


def _run_on_cpu(sessions: OnnxSessions, original: Path | bytes) -> Run:
    return SessionTensors(sessions.open_on_cpu(original)).run


def _in_words(graph: ChosenGraph, precision: str, difference: float | None) -> str:
    """Describe a model's computation for its line in the log."""
    if difference is None:
        compared = "not compared with float32 on the CPU"
    else:
        compared = describe_difference(difference, "float32 on the CPU")
    return f"graph {'fused' if graph.is_fused else 'plain'}; precision {precision}, {compared}"


def _load_with_state(
    deployment: Deployment, session: onnxruntime.InferenceSession, settings: SequenceSettings
) -> Runtime:
    """Load a model that keeps state for sequences."""
    rows = SequenceSession(session, deployment, settings)
    inputs, outputs = (
        tuple(tensor_info(value, deployment) for value in side)
        for side in (rows.get_inputs(), rows.get_outputs())
    )

    declaration = declared_rows(deployment.declaration, rows, inputs, outputs)
    run, tensors = apply_declaration(
        declaration, SessionTensors(rows).run, ModelTensors(inputs, outputs, batched=True)
    )

    def rows_runtime(signature: Signature) -> Runtime:
        plain_rows = RowsRuntime(run, signature)
        return keep_state(deployment.name, plain_rows, settings, rows.controls, deployment.path.parent)

    # The declaration was applied above, to the rows.
    plain = dataclasses.replace(deployment, declaration=None)
    runtime = wrap_model(plain, run, tensors, rows_runtime, sampled=False)
    check_batched(deployment, runtime)
    return runtime


def _fit_options(
    sessions: OnnxSessions, session: onnxruntime.InferenceSession, inputs: Sequence[TensorInfo]
) -> OnnxSessions:
    """Return sessions with options with which the model runs, and runs well; the same ones if `session` does."""
    if sessions.device.kind == "cpu":
        if sessions.threads == 1 or not _is_short(session, inputs):
            return sessions
        return msgspec.structs.replace(sessions, threads=1)
    name, precision = sessions.deployment.name, sessions.deployment.acceleration.precision
    if precision not in CHANNELS_LAST or _runs_channels_last(name, session, inputs):
        return sessions
    return msgspec.structs.replace(sessions, channels_last=False)


def _is_short(session: onnxruntime.InferenceSession, inputs: Sequence[TensorInfo]) -> bool:
    """Whether a batch takes less than threads are worth."""
    run = SessionTensors(session).run
    try:
        # The single row shows whether there is memory for more.
        return all(
            min(timeit.repeat(partial(run, sample_feeds(inputs, rows)), number=1, repeat=3)) < _SHORT_S
            for rows in (1, _SHORT_ROWS)
        )
    except Exception:  # noqa: BLE001  # a later step reports it
        return False


def _runs_channels_last(
    name: str, session: onnxruntime.InferenceSession, inputs: Sequence[TensorInfo]
) -> bool:
    """Whether cuDNN can run each convolution with channels last, for which it has fewer algorithms."""
    try:
        SessionTensors(session).run(sample_feeds(inputs, 2))
    except OutOfMemory:
        return True
    except Exception as error:  # noqa: BLE001  # a later step reports any other error
        if "CUDNN" not in str(error):
            return True
        logger.warning(
            "%s: its images are kept with the channels first, which is slower: cuDNN cannot run it with the "
            "channels last: %s",
            name,
            without_source_positions(str(error))[:_MOST_CHARACTERS],
        )
        return False
    return True
