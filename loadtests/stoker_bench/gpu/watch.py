"""What a GPU did during a measurement, as the NVIDIA driver says."""

from __future__ import annotations

import contextlib
import statistics
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from stoker.gpu.nvml import GpuReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType

    from stoker.gpu.facts import GpuReading

__all__ = ["GpuFigures", "GpuWatch", "gpu_figures", "process_memory_bytes"]

PERIOD_S = 0.1


@dataclass(frozen=True)
class GpuFigures:
    """Means and maxima over one measurement; None for what the driver does not say.

    Attributes:
        busy_share: Mean share of time in which a kernel ran, 0..1.
        memory_bytes: Most memory in use, that of all processes.
        power_w: Mean power.
        throttled: Why clocks were below their maximum at some moment, idleness aside.
    """

    busy_share: float | None
    memory_bytes: int | None
    power_w: float | None
    throttled: tuple[str, ...] = ()


def gpu_figures(readings: Sequence[GpuReading]) -> GpuFigures | None:
    """Summarise readings of one GPU; None where there are none."""
    if not readings:
        return None
    busy = [reading.utilization_percent for reading in readings if reading.utilization_percent is not None]
    memory = [reading.memory_used_bytes for reading in readings if reading.memory_used_bytes is not None]
    power = [reading.power_mw for reading in readings if reading.power_mw is not None]
    reasons = {name for reading in readings for name, holds in reading.throttle_reasons().items() if holds}
    return GpuFigures(
        statistics.mean(busy) / 100 if busy else None,
        max(memory) if memory else None,
        statistics.mean(power) / 1000 if power else None,
        tuple(sorted(reasons - {"gpu_idle"})),
    )


class GpuWatch:
    """Reads a GPU several times a second from a thread of its own; a context manager.

    Args:
        uuid: The GPU's; empty for the CPU, of which there is nothing to read.
        read: What reads all GPUs.
    """

    def __init__(self, uuid: str, read: Callable[[], list[GpuReading]] | None = None) -> None:
        self._uuid = uuid
        self._read = read or GpuReader().read
        self._readings: list[GpuReading] = []
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while self._uuid:
            try:
                self._readings += [reading for reading in self._read() if reading.uuid == self._uuid]
            except OSError:
                return
            if self._stop.wait(PERIOD_S):
                return

    @property
    def figures(self) -> GpuFigures | None:
        """What was read; None without a GPU."""
        return gpu_figures(self._readings)


def process_memory_bytes(uuid: str, pids: Collection[int]) -> int | None:
    """Return the memory of a GPU that some processes hold together; None where the driver does not say.

    A virtual machine or a container may hide the processes; then the memory of all processes is returned.
    """
    if not uuid:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        held = [each.usedGpuMemory for each in running if each.pid in pids and each.usedGpuMemory]
        return int(sum(held)) if held else int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except pynvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
