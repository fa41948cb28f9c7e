"""SavedModels by TensorFlow."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.acceleration import Acceleration
from stoker.errors import InvalidInput, LoadFailed
from stoker.extras import how_to_install
from stoker.isolation.difference import largest_difference
from stoker.isolation.reading import Reading
from stoker.isolation.tensorflow_reading import read_concrete_function
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.fastest import feasible_sizes, sample_rows
from stoker.runtimes.serving_way import as_runtime
from stoker.servable import Device, Servable
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, Signature, TensorInfo

__all__ = ["TensorFlowRuntime", "import_tensorflow", "load_saved_model"]

logger = logging.getLogger(__name__)

_SIGNATURE = "serving_default"
_XLA_TOLERANCE = 1e-2


def import_tensorflow(device: Device, threads: int, acceleration: Acceleration | None = None) -> Any:
    """Import TensorFlow, quietly, and confine it to `device`.

    Args:
        device: The CPU, or the one GPU that the process sees.
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
    elif not gpus:
        raise LoadFailed(f"TensorFlow does not find {device}; see TensorFlow's log above")
    else:
        tf.config.set_visible_devices(gpus[0], "GPU")
        _set_up_gpu(tf, gpus[0], acceleration)
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
    """Load a SavedModel's signature `serving_default`: row by row or request by request.

    Raises:
        LoadFailed: The folder cannot be loaded, or the signature holds tensors of types that are not served; or XLA
            cannot compile it.
    """
    model = _SignatureTensors(import_tensorflow(device, threads, servable.acceleration), servable)
    batched = all(info.shape[:1] == (-1,) for info in model.inputs)
    tensors = ModelTensors(model.inputs, model.outputs, batched)

    def rows_runtime(signature: Signature) -> Runtime:
        runtime = TensorFlowRuntime(model, signature)
        if servable.acceleration.xla:
            runtime.compile(servable.name, servable.batch_buckets or ())
        return runtime

    return as_runtime(servable, model.run, tensors, rows_runtime, model.read)


class TensorFlowRuntime:
    """A signature whose inputs are batches of rows of a fixed shape; several threads may run it."""

    def __init__(
        self, model: _SignatureTensors, signature: Signature, compiled: Mapping[int, Any] | None = None
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

    def fork(self) -> TensorFlowRuntime:
        """A further one of the same model."""
        return TensorFlowRuntime(self._model, self.signature, self._compiled)

    def _run(self, inputs: Sequence[Any], compiled: Any) -> Sequence[np.ndarray]:
        results = self._model.run(dict(zip(self._input_names, inputs, strict=True)), compiled)
        return [results[name] for name in self._output_names]


class _SignatureTensors:
    """A SavedModel's signature as a function of named tensors; strings are `bytes`, as in TensorFlow."""

    def __init__(self, tf: Any, servable: Servable) -> None:
        self._tf = tf
        try:
            # The object must outlive its functions: they hold only weak references to its variables.
            self._model = tf.saved_model.load(str(servable.path))
        except Exception as error:
            raise LoadFailed(f"TensorFlow cannot load {servable.path}: {error}") from error
        functions = self._model.signatures
        if _SIGNATURE not in functions:
            raise LoadFailed(
                f"{servable.path} has no signature {_SIGNATURE!r}, it has: {', '.join(functions) or 'none'}"
            )
        self._function = functions[_SIGNATURE]
        _, keywords = self._function.structured_input_signature
        self.inputs = tuple(_info(name, spec, servable) for name, spec in sorted(keywords.items()))
        if not self.inputs:
            raise LoadFailed(f"{servable.path} has no inputs")
        outputs = self._function.structured_outputs
        self.outputs = tuple(_info(name, spec, servable) for name, spec in sorted(outputs.items()))

    def read(self) -> Reading:
        """What the signature's graph says of its rows."""
        return read_concrete_function(self._function)

    def compile(self, rows: int) -> Any:
        """The signature for batches of `rows`, to be compiled with XLA by its first call."""
        tensors = {
            info.name: self._tf.TensorSpec((rows, *info.shape[1:]), info.dtype, info.name)
            for info in self.inputs
        }

        def signature(**feeds: Any) -> Any:
            return self._function(**feeds)

        return self._tf.function(signature, jit_compile=True).get_concrete_function(**tensors)

    def run(self, feeds: Mapping[str, np.ndarray], compiled: Any = None) -> dict[str, np.ndarray]:
        """Run one batch, by what `compile` made for its size if that is given.

        Raises:
            InvalidInput: The model cannot take these tensors, by their sizes or contents.
            OutOfMemory: The device has no memory for them.
        """
        function = self._function if compiled is None else compiled
        try:
            # tf.constant copies: the gathered batch is overwritten by the next one.
            tensors = {name: self._tf.constant(array) for name, array in feeds.items()}
            results = function(**tensors)
            return {info.name: results[info.name].numpy() for info in self.outputs}
        except (self._tf.errors.InvalidArgumentError, self._tf.errors.OutOfRangeError) as error:
            # The last line, before the nodes: those above say where in the exporter's code it was.
            reason = error.message.partition("\n\t [[")[0].splitlines()[-1]
            raise InvalidInput(f"The model cannot take these tensors: {reason}") from error
        except self._tf.errors.ResourceExhaustedError as error:
            raise OutOfMemory(error.message) from error


def _info(name: str, spec: Any, servable: Servable) -> TensorInfo:
    dtype = spec.dtype.name
    if dtype not in NUMERIC_DTYPES and dtype != "string":
        raise LoadFailed(f"{name!r} of {servable.path} holds {dtype}, only numbers and strings are served")
    if spec.shape.rank is None:
        raise LoadFailed(
            f"{name!r} of {servable.path} has no fixed number of axes; give it a shape when the model is exported"
        )
    return TensorInfo(name, dtype, tuple(-1 if size is None else size for size in spec.shape.as_list()))
