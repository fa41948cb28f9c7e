"""SavedModels by TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.serving_way import as_runtime
from stoker.servable import Device, Servable
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, Signature, TensorInfo

__all__ = ["TensorFlowRuntime", "import_tensorflow", "load_saved_model"]

_SIGNATURE = "serving_default"


def import_tensorflow(device: Device, threads: int) -> Any:
    """Import TensorFlow, quietly, and confine it to `device` with memory growth.

    Raises:
        LoadFailed: TensorFlow is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if device.kind == "cpu":
        # Else it looks for CUDA libraries and complains of each that is missing.
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        import tensorflow as tf
    except ImportError as error:
        raise LoadFailed(
            f"a SavedModel needs TensorFlow ({error}); install it with: pip install 'stoker[tensorflow]'"
        ) from error
    gpus = tf.config.list_physical_devices("GPU")
    if device.kind == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif device.index >= len(gpus):
        raise LoadFailed(
            f"TensorFlow finds {len(gpus)} GPUs, {device} is not among them; see TensorFlow's log above"
        )
    else:
        tf.config.set_visible_devices(gpus[device.index], "GPU")
        tf.config.experimental.set_memory_growth(gpus[device.index], True)
    # Both can be set once only, before the first operation; a second model in the process keeps them.
    if tf.config.threading.get_intra_op_parallelism_threads() == 0:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def load_saved_model(servable: Servable, device: Device, threads: int) -> Runtime:
    """Load a SavedModel's signature `serving_default`: row by row or request by request.

    Raises:
        LoadFailed: The folder cannot be loaded, or the signature holds tensors of types that are not served.
    """
    model = _SignatureTensors(import_tensorflow(device, threads), servable)
    batched = all(info.shape[:1] == (-1,) for info in model.inputs)
    tensors = ModelTensors(model.inputs, model.outputs, batched)
    return as_runtime(servable, model.run, tensors, lambda signature: TensorFlowRuntime(model, signature))


class TensorFlowRuntime:
    """A signature whose inputs are batches of rows of a fixed shape."""

    def __init__(self, model: _SignatureTensors, signature: Signature) -> None:
        self.signature = signature
        self._model = model
        self._input_names = [spec.name for spec in signature.inputs]
        self._output_names = [spec.name for spec in signature.outputs]

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        results = self._model.run(dict(zip(self._input_names, inputs, strict=True)))
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

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        # tf.constant copies: the gathered batch is overwritten by the next one.
        tensors = {name: self._tf.constant(array) for name, array in feeds.items()}
        try:
            results = self._function(**tensors)
        except (self._tf.errors.InvalidArgumentError, self._tf.errors.OutOfRangeError) as error:
            # The last line, before the nodes: those above say where in the exporter's code it was.
            reason = error.message.partition("\n\t [[")[0].splitlines()[-1]
            raise InvalidInput(f"The model cannot take these tensors: {reason}") from error
        return {info.name: results[info.name].numpy() for info in self.outputs}


def _info(name: str, spec: Any, servable: Servable) -> TensorInfo:
    dtype = spec.dtype.name
    if dtype not in NUMERIC_DTYPES and dtype != "string":
        raise LoadFailed(f"{name!r} of {servable.path} holds {dtype}, only numbers and strings are served")
    if spec.shape.rank is None:
        raise LoadFailed(
            f"{name!r} of {servable.path} has no fixed number of axes; give it a shape when the model is exported"
        )
    return TensorInfo(name, dtype, tuple(-1 if size is None else size for size in spec.shape.as_list()))
