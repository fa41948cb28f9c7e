"""TensorFlow and Keras, imported quietly and in full float32, and the devices that TensorFlow found."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from stoker.gpu.facts import Visible, visible_devices
from stoker.gpu.nvml import gpus
from stoker.system.native_chatter import without_native_chatter

__all__ = ["Gpu", "describe_devices", "found_gpus", "keras", "strategy", "tf"]


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
# NVML counts devices in this order; with CUDA's own, the free memory of one GPU would be told of another.
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


_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as TensorFlow sees it; what neither TensorFlow nor NVML tells is None.

    Attributes:
        compute_capability: For instance `9.0`.
        pci_bus: PCI bus id, for instance `00000000:18:00.0`.
        free_bytes: Memory that no process holds.
    """

    name: str
    compute_capability: str | None = None
    pci_bus: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None

    def __str__(self) -> str:
        facts = [self.name]
        if self.pci_bus is not None:
            facts.append(f"PCI bus {self.pci_bus}")
        if self.compute_capability is not None:
            facts.append(f"compute capability {self.compute_capability}")
        if self.total_bytes is not None and self.free_bytes is not None:
            facts.append(f"{self.total_bytes // _MIB:,} MiB memory, {self.free_bytes // _MIB:,} MiB free")
        return ", ".join(facts)


def found_gpus() -> list[Gpu]:
    """Return TensorFlow's GPUs in its own order."""
    devices = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    try:
        seen = visible_devices(gpus(), os.environ) if devices else []
    except OSError:
        seen = []
    return [_gpu(*both) for both in zip_longest(details, seen[: len(details)])]


def describe_devices(found: list[Gpu]) -> list[str]:
    """Return one sentence a device, for the operator."""
    if not found:
        return [f"Devices: CPU only ({os.cpu_count()} cores)."]
    return [f"Device GPU:{number}: {gpu}." for number, gpu in enumerate(found)]


def strategy(found: list[Gpu]) -> tf.distribute.Strategy:
    """Return how to spread the training: a copy of the model on each of several GPUs, else one device."""
    return tf.distribute.MirroredStrategy() if len(found) > 1 else tf.distribute.get_strategy()


def _gpu(detail: dict[str, Any], seen: Visible | None) -> Gpu:
    """A GPU of TensorFlow, with what NVML knows of it, unless that is another one."""
    capability, name = detail.get("compute_capability"), str(detail.get("device_name", "GPU"))
    found = Gpu(name, None if capability is None else ".".join(map(str, capability)))
    device = None if seen is None else seen.part or seen.gpu
    if seen is None or device is None or device.name != name:
        return found
    return replace(
        found,
        pci_bus=seen.gpu.pci_bus,
        total_bytes=device.memory_total_bytes,
        free_bytes=device.memory_free_bytes,
    )
