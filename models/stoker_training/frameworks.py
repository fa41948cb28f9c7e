"""TensorFlow and Keras, imported quietly and in full float32, and the devices that TensorFlow found."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from stoker.system.native_chatter import without_native_chatter

__all__ = ["describe_devices", "found_gpus", "keras", "strategy", "tf"]


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
# nvidia-smi and `stoker doctor` count devices in this order.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

with without_native_chatter():
    import keras
    import tensorflow as tf

tf.get_logger().setLevel("ERROR")
keras.config.disable_interactive_logging()
# A personal keras.json may say otherwise.
keras.config.set_floatx("float32")
keras.config.set_image_data_format("channels_last")
# TensorFloat-32 keeps 10 bits of each factor: the SavedModel would miss the ONNX model's logits.
tf.config.experimental.enable_tensor_float_32_execution(False)
# A program that has used its GPUs before it trains has settled how their memory grows.
with suppress(RuntimeError):
    for _device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(_device, True)


def found_gpus() -> list[str]:
    """Return TensorFlow's GPUs in its own order: the name and the compute capability of each."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return list(map(_described, details))


def _described(detail: dict[str, Any]) -> str:
    name, capability = str(detail.get("device_name", "GPU")), detail.get("compute_capability")
    return name if capability is None else f"{name}, compute capability {'.'.join(map(str, capability))}"


def describe_devices(gpus: list[str]) -> list[str]:
    """Return one sentence a device, for the operator."""
    if not gpus:
        return [f"Devices: CPU only ({os.cpu_count()} cores)."]
    return [f"Device GPU:{number}: {gpu}." for number, gpu in enumerate(gpus)]


def strategy(gpus: list[str]) -> tf.distribute.Strategy:
    """Return how to spread the training: a copy of the model on each of several GPUs, else one device."""
    return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()
