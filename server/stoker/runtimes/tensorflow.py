"""SavedModels by TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.errors import LoadFailed
from stoker.servable import Device, Servable
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorSpec

__all__ = ["TensorFlowRuntime", "import_tensorflow"]

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


class TensorFlowRuntime:
    """One SavedModel and its signature `serving_default`.

    Raises:
        LoadFailed: The folder cannot be loaded, or the signature does not take batches of rows of a fixed
        shape.
    """

    def __init__(self, servable: Servable, device: Device, threads: int) -> None:
        tf = import_tensorflow(device, threads)
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
        self.signature = self._learn_signature(servable)
        self._input_names = [spec.name for spec in self.signature.inputs]
        self._output_names = [spec.name for spec in self.signature.outputs]

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        # tf.constant copies: the gathered batch is overwritten by the next one.
        feeds = {
            name: self._tf.constant(batch) for name, batch in zip(self._input_names, inputs, strict=True)
        }
        results = self._function(**feeds)
        return [results[name].numpy() for name in self._output_names]

    def _learn_signature(self, servable: Servable) -> Signature:
        _, keywords = self._function.structured_input_signature
        inputs = tuple(_spec(name, value, servable) for name, value in sorted(keywords.items()))
        zeros = {spec.name: self._tf.zeros((2, *spec.shape), spec.dtype) for spec in inputs}
        try:
            results = self._function(**zeros)
        except Exception as error:
            raise LoadFailed(f"{servable.path} fails on a batch of two rows of zeros: {error}") from error
        outputs = []
        for name, value in sorted(results.items()):
            array = value.numpy()
            if array.ndim == 0 or array.shape[0] != 2 or array.dtype.name not in NUMERIC_DTYPES:
                raise LoadFailed(
                    f"output {name!r} of {servable.path} is {array.dtype.name} of shape {list(array.shape)} for a "
                    "batch of 2 rows; it must hold numbers and its first axis must be the batch"
                )
            outputs.append(TensorSpec(name, array.dtype.name, array.shape[1:]))
        return Signature(inputs, tuple(outputs))


def _spec(name: str, value: Any, servable: Servable) -> TensorSpec:
    shape: list[Any] = value.shape.as_list() if value.shape.rank is not None else [None]
    if value.dtype.name not in NUMERIC_DTYPES:
        raise LoadFailed(
            f"input {name!r} of {servable.path} holds {value.dtype.name}, only numbers are served"
        )
    if not shape or shape[0] is not None or None in shape[1:]:
        raise LoadFailed(
            f"input {name!r} of {servable.path} has shape {shape}; the first axis must be a dynamic batch axis "
            "and no other may be dynamic"
        )
    return TensorSpec(name, value.dtype.name, tuple(shape[1:]))
