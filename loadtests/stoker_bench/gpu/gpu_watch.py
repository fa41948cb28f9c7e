"""The load, memory and power of a GPU while a measurement runs, as the NVIDIA driver reports them."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from stoker.gpu.facts import GpuReading
from stoker.gpu.nvml import GpuReader

PERIOD_S = 0.1


@dataclass(frozen=True)
class GpuFigures:
    """Means and maxima over one measurement; None for figures that the driver lacks.

    Attributes:
        busy_share: Mean share of time in which a kernel ran, 0..1.
        memory_bytes: Maximum memory in use by all processes.
        power_w: Mean power.
        throttled: Why clocks were below their maximum, except for idleness.
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
        uuid: The GPU's UUID; empty for the CPU, which has no readings.
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
        """The figures; None without a GPU."""
        return gpu_figures(self._readings)
