"""What a machine has for runs: cores and GPUs, as far as this process may use them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stoker.gpu.nvml import gpus
from stoker.system.cgroup import usable_cores

__all__ = ["Capacity", "machine_capacity"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there is.

    Attributes:
        cores: How many.
        gpus: Their names for CUDA_VISIBLE_DEVICES: numbers or UUIDs.
    """

    cores: int
    gpus: tuple[str, ...] = ()


def machine_capacity() -> Capacity:
    """What this machine has: the cores within this process's limit, the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    return Capacity(usable_cores(), _gpu_names())


def _gpu_names() -> tuple[str, ...]:
    try:
        found = gpus()
    except OSError:
        # No driver, no GPU.
        return ()
    if not found:
        return ()
    # Not above: it knows of models and settings, which most machines that run scripts need not import.
    from stoker.gpu.visible import visible_devices

    visible = visible_devices(found, os.environ)
    return tuple(device.part.uuid if device.part is not None else device.gpu.uuid for device in visible)
