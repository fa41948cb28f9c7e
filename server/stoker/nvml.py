"""What the NVIDIA driver says of its GPUs, through NVML."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Gpu", "GpuReading", "gpus", "read_gpus"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the NVIDIA driver sees."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Memory and utilisation of a GPU at one moment."""

    index: int
    memory_used_bytes: int
    memory_total_bytes: int
    utilization_percent: int


@contextmanager
def _nvml() -> Iterator[tuple[Any, list[Any]]]:
    """NVML, initialised, and a handle of each GPU; raises OSError where there is no NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"no NVIDIA driver is usable here (NVML: {error})") from error
    try:
        yield pynvml, [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def gpus() -> list[Gpu]:
    """The GPUs that the NVIDIA driver sees.

    Raises:
        OSError: There is no usable NVIDIA driver.
    """
    with _nvml() as (nvml, handles):
        return [
            Gpu(index, nvml.nvmlDeviceGetName(handle), int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
            for index, handle in enumerate(handles)
        ]


def read_gpus() -> list[GpuReading]:
    """Read memory and utilisation of every GPU; MIG devices report no utilisation and count as 0.

    Raises:
        OSError: There is no usable NVIDIA driver.
    """
    with _nvml() as (nvml, handles):
        readings = []
        for index, handle in enumerate(handles):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            try:
                busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except nvml.NVMLError:
                busy = 0
            readings.append(GpuReading(index, int(memory.used), int(memory.total), busy))
        return readings
