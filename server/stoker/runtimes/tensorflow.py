"""SavedModels by TensorFlow."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.errors import LoadFailed
from stoker.isolation.difference import largest_difference
from stoker.runtimes.base import Runtime
from stoker.runtimes.fastest import feasible_sizes, sample_rows
from stoker.runtimes.packed import PackedRuntime
from stoker.runtimes.saved_model import SavedModel, SavedSignature
from stoker.runtimes.serving_way import as_runtime
from stoker.runtimes.signatures import SignaturesRuntime, chosen_signatures
from stoker.servable import Device, Servable
from stoker.settings.acceleration import Acceleration
from stoker.system.extras import how_to_install
from stoker.tensors import NamedSignature, Signature

__all__ = ["TensorFlowRuntime", "import_tensorflow", "load_saved_model"]

logger = logging.getLogger(__name__)

_XLA_TOLERANCE = 1e-2


def import_tensorflow(device: Device, threads: int, acceleration: Acceleration | None = None) -> Any:
    """Import TensorFlow, quietly, and confine it to `device`.

    Args:
        device: The CPU, or the GPUs that the process sees, of which only a script has several.
        threads: Threads that one operation may use on the CPU.
        acceleration: How it uses the GPU; None leaves all to the script but that its memory grows as it needs it.

    Raises:
        LoadFailed: TensorFlow is not installed, or does not find the GPU.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if device.kind == "cpu":
        # Else it looks for CUDA libraries and complains of each that is missing.
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        import tensorflow as tf
    except ImportError as error:
        raise LoadFailed(
            f"a SavedModel needs TensorFlow ({error}); {how_to_install('tensorflow')}"
        ) from error
    gpus = tf.config.list_physical_devices("GPU")
    if device.kind == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif len(gpus) < len(device.gpus):
        raise LoadFailed(f"TensorFlow does not find {device}; see TensorFlow's log above")
    else:
        own = gpus[: len(device.gpus)]
        tf.config.set_visible_devices(own, "GPU")
        for gpu in own:
            _set_up_gpu(tf, gpu, acceleration)
    # Both can be set once only, before the first operation; a second model in the process keeps them.
    if tf.config.threading.get_intra_op_parallelism_threads() == 0:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def _set_up_gpu(tf: Any, gpu: Any, acceleration: Acceleration | None) -> None:
    """Set memory and precision, which are the process's: a model with settings of its own is alone in it."""
    if acceleration is None or acceleration.memory_mb is None:
        tf.config.experimental.set_memory_growth(gpu, True)
    else:
        # Excludes memory growth: the whole of it is taken with the first operation.
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=acceleration.memory_mb)
        tf.config.set_logical_device_configuration(gpu, [limit])
    if acceleration is not None:
        tf.config.experimental.enable_tensor_float_32_execution(acceleration.precision != "fp32")
    if acceleration is not None and acceleration.precision == "fp16":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})


def load_saved_model(servable: Servable, device: Device, threads: int) -> Runtime:
    """Load the signatures of a SavedModel that are to be served.

    A single one is served row by row or request by request; several are served request by request.

    Raises:
        LoadFailed: The folder cannot be loaded, it is not clear which signature is meant, or one holds tensors of
            types that are not served; or XLA cannot compile it.
    """
    model = SavedModel(import_tensorflow(device, threads, servable.acceleration), servable.path)
    names = chosen_signatures(servable.path, model.signatures, servable.signatures)
    if len(names) == 1:
        return _single(model, names[0], servable)
    signatures, runtimes = [], {}
    for name in names:
        try:
            signature = SavedSignature(model, name)
        except LoadFailed as error:
            if name in servable.signatures or name == names[0]:
                raise
            logger.info("%s: the signature %s is left out: %s", servable.name, name, error)
            continue
        runtimes[name] = _packed(signature, servable, is_default=name == names[0])
        tensors = runtimes[name].signature.tensors
        assert tensors is not None, "packed rows have them"
        signatures.append(NamedSignature(name, tensors, model.method(name)))
    _check_padded(servable, signatures)
    if servable.acceleration.xla:
        logger.warning("%s: xla does nothing for a model that serves several signatures", servable.name)
    return SignaturesRuntime(signatures, runtimes)


def _single(model: SavedModel, name: str, servable: Servable) -> Runtime:
    signature = SavedSignature(model, name)

    def rows_runtime(rows: Signature) -> Runtime:
        runtime = TensorFlowRuntime(signature, rows)
        if servable.acceleration.xla:
            runtime.compile(servable.name, servable.batch_buckets or ())
        return runtime

    runtime = as_runtime(servable, signature.run, signature.tensors, rows_runtime, signature.read)
    _after_trials(runtime, signature)
    tensors = runtime.signature.model_tensors
    assert tensors is not None, "only scripts have none"
    named = NamedSignature(name, tensors, model.method(name))
    runtime.signature = dataclasses.replace(runtime.signature, signatures=(named,))
    return runtime


def _packed(signature: SavedSignature, servable: Servable, *, is_default: bool) -> PackedRuntime:
    """One of several signatures: its requests are packed, even if they could be rows of numbers."""
    names = {info.name for info in signature.inputs}
    own = dataclasses.replace(
        servable,
        name=f"{servable.name}, signature {signature.name}",
        pad={name: value for name, value in servable.pad.items() if name in names},
    )

    def pack_rows(rows: Signature) -> Runtime:
        assert rows.model_tensors is not None, "rows of numbers have them"
        return PackedRuntime(signature.run, rows.model_tensors, own, rows.verdict)

    # What the model is known to answer is a request to its default.
    runtime = as_runtime(own, signature.run, signature.tensors, pack_rows, signature.read, sampled=is_default)
    assert isinstance(runtime, PackedRuntime), "made here, or for what is packed anyway"
    _after_trials(runtime, signature)
    return runtime


def _after_trials(runtime: Runtime, signature: SavedSignature) -> None:
    """Undo what the rows that were tried have changed, and have nothing else run that nobody has asked for."""
    verdict = runtime.signature.verdict
    if signature.state and verdict is not None:
        signature.restore()
        verdict = dataclasses.replace(verdict, keeps_state=True)
        runtime.signature = dataclasses.replace(runtime.signature, verdict=verdict)


def _check_padded(servable: Servable, signatures: Sequence[NamedSignature]) -> None:
    known = {info.name for signature in signatures for info in signature.tensors.inputs}
    for name in servable.pad:
        if name not in known:
            raise LoadFailed(
                f"{servable.name} cannot pad {name!r}: no signature that is served has this input"
            )


class TensorFlowRuntime:
    """A signature whose inputs are batches of rows of a fixed shape; several threads may run it."""

    def __init__(
        self, model: SavedSignature, signature: Signature, compiled: Mapping[int, Any] | None = None
    ) -> None:
        self.signature = signature
        self._model = model
        self._compiled = compiled or {}
        self._input_names = [spec.name for spec in signature.inputs]
        self._output_names = [spec.name for spec in signature.outputs]

    def compile(self, name: str, sizes: Sequence[int]) -> None:
        """Compile the signature with XLA for batches of these sizes; others run as they did.

        Raises:
            LoadFailed: XLA cannot compile it, or what it makes of it gives something else.
        """
        if not sizes:
            logger.warning("%s: xla does nothing without batch_buckets, for it compiles fixed sizes", name)
            return
        begun = time.perf_counter()
        compiled = {}
        for rows in feasible_sizes(name, self, sizes):
            inputs = sample_rows(self.signature.inputs, rows, 1)
            expected = self.run(inputs)
            try:
                compiled[rows] = self._model.compile(rows)
                given = self._run(inputs, compiled[rows])
            except Exception as error:
                raise LoadFailed(f"{name}: XLA cannot compile it for {rows} rows: {error}") from error
            difference = largest_difference(given, expected)
            if difference > _XLA_TOLERANCE:
                raise LoadFailed(
                    f"{name}: compiled with XLA its outputs differ by {difference:.2g} of the largest one; "
                    "leave xla out"
                )
        self._compiled = compiled
        told = ", ".join(map(str, compiled))
        took_s = time.perf_counter() - begun
        logger.info("%s: compiled with XLA for batches of %s rows in %.1f s", name, told, took_s)

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        return self._run(inputs, self._compiled.get(len(inputs[0])))

    def restore(self) -> None:
        """See `RestoringRuntime`."""
        self._model.restore()

    def fork(self) -> TensorFlowRuntime:
        """A further one of the same model."""
        return TensorFlowRuntime(self._model, self.signature, self._compiled)

    def _run(self, inputs: Sequence[Any], compiled: Any) -> Sequence[np.ndarray]:
        results = self._model.run(dict(zip(self._input_names, inputs, strict=True)), compiled)
        return [results[name] for name in self._output_names]
