"""The cores and GPUs of this machine that runs may use, within the limits of this process."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stoker.gpu.nvml import gpus
from stoker.system.resources import usable_cores

__all__ = ["Capacity", "machine_capacity"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a machine.

    Attributes:
        cores: Number of cores.
        gpus: Their names for CUDA_VISIBLE_DEVICES: numbers or UUIDs.
    """

    cores: int
    gpus: tuple[str, ...] = ()


def machine_capacity() -> Capacity:
    """The capacity of this machine: cores within this process's limit, and the GPUs in CUDA_VISIBLE_DEVICES."""
    return Capacity(usable_cores(), _gpu_names())


def _gpu_names() -> tuple[str, ...]:
    try:
        found = gpus()
    except OSError:
        # No driver, so no GPU.
        return ()
    if not found:
        return ()
    # Imported here: it imports modules of models and settings, which most machines that run scripts do not need.
    from stoker.gpu.visible import visible_devices

    visible = visible_devices(found, os.environ)
    return tuple(device.part.uuid if device.part is not None else device.gpu.uuid for device in visible)
