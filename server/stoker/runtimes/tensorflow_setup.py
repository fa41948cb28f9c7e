"""Importing TensorFlow and confining it to a device: once in a process, before its first operation."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.abc import MetaPathFinder
from typing import Any

from stoker.deployment import Device
from stoker.errors import LoadFailed
from stoker.settings.choices import Acceleration
from stoker.system.extras import how_to_install
from stoker.system.native_chatter import without_native_chatter


def import_tensorflow(
    device: Device, threads: int, acceleration: Acceleration | None = None, *, keras: bool = True
) -> Any:
    """Import TensorFlow without its messages, and confine it to `device`.

    Args:
        device: The CPU, or the GPUs that the process sees; only a script has several.
        threads: Threads that one operation may use on the CPU.
        acceleration: How to use the GPU; None sets only that memory grows on demand, for a script.
        keras: Whether to import Keras with it: no SavedModel needs it, and it is half of the time. Where it is not,
            `tensorflow.keras` imports it when it is first used.

    Raises:
        LoadFailed: TensorFlow is not installed, or does not find the GPU.
    """
    # On a CPU, TensorFlow logs the missing GPU as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if device.kind == "cpu" else "2")
    if device.kind == "cpu":
        # Otherwise TensorFlow searches for CUDA libraries and warns of each that is missing.
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        with without_native_chatter(), nullcontext() if keras else _without_keras():
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


class _KerasRefusal(MetaPathFinder):
    """Refuses the parts of Keras to one thread; the package itself is found, for TensorFlow asks where it is."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, *_: object) -> None:
        """Refuse a module of Keras by an error, and leave others to the next finder."""
        if fullname.startswith(("keras.", "tf_keras.")) and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not imported with TensorFlow")


@contextmanager
def _without_keras() -> Iterator[None]:
    """TensorFlow imports Keras for what Keras may register, and goes on if that fails.

    Keras in turn imports scikit-learn and Matplotlib where they are installed.
    """
    refusal = _KerasRefusal()
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)


def _set_up_gpu(tf: Any, gpu: Any, acceleration: Acceleration | None) -> None:
    """Set memory and precision of the process. A model with settings of its own has a process of its own."""
    if acceleration is None or acceleration.memory_mb is None:
        tf.config.experimental.set_memory_growth(gpu, True)
    else:
        # A limit excludes growth: the first operation takes all of this memory.
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=acceleration.memory_mb)
        tf.config.set_logical_device_configuration(gpu, [limit])
    if acceleration is not None:
        tf.config.experimental.enable_tensor_float_32_execution(acceleration.precision != "fp32")
    if acceleration is not None and acceleration.precision == "fp16":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
