"""Models behind the server on a GPU: closed-loop load, with the GPU's figures from the NVIDIA driver."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from stoker.gpu.facts import GpuReading
from stoker.gpu.nvml import GpuReader
from stoker_bench.contestants.contest import mean_batch_rows
from stoker_bench.contestants.servers import ProcessTree
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.gpu.server import Body, GpuServer

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


def process_memory_bytes(uuid: str, pids: Collection[int]) -> int | None:
    """Return the memory of a GPU that some processes hold together; None if the driver does not report it.

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


SATURATED_SHARE = 0.9


@dataclass(frozen=True)
class Served:
    """The results of callers of one model, each with one row under way at a time.

    Attributes:
        body: The form of the bodies, `binary` or `json`.
        body_bytes: The size of each.
        rows_per_s: Answered rows per second, one per request.
        p50_ms, p99_ms: Latencies.
        errors: Answers other than 2xx, and broken connections.
        mean_batch_rows: Mean rows per batch, from the first caller to the last.
        gpu: Figures of the GPU; None without one.
        frontend_cores: Cores that the HTTP processes kept busy.
        device_cores: Cores that the device processes kept busy.
        generator_cores: Cores that the load generator kept busy.
        generator_processes: Maximum cores that it could use.
        ceiling_rows_per_s: Throughput of the runtime alone, measured in the same run; None if it was not.
    """

    model: str
    body: str
    body_bytes: int
    callers: int
    rows_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int
    mean_batch_rows: float | None
    gpu: GpuFigures | None
    frontend_cores: float
    device_cores: float
    generator_cores: float
    generator_processes: int
    ceiling_rows_per_s: float | None = None

    @property
    def of_ceiling(self) -> float | None:
        """The rate relative to the runtime alone."""
        return self.rows_per_s / self.ceiling_rows_per_s if self.ceiling_rows_per_s else None

    @property
    def generator_saturated(self) -> bool:
        """Whether the load generator used nearly all its cores, so that the server may be faster than measured."""
        processes = min(self.generator_processes, self.callers)
        return self.generator_cores > SATURATED_SHARE * processes


class Meter:
    """Reads a server's clocks and the GPU while its block runs; a context manager."""

    def __init__(self, server: GpuServer, gpu_uuid: str) -> None:
        self._gpu = GpuWatch(gpu_uuid)
        self._frontends = ProcessTree(*server.frontends())
        self._devices = ProcessTree(*server.devices())

    def __enter__(self) -> Self:
        self._before = self._read()
        self._gpu.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gpu.__exit__(kind, error, trace)
        before, after = self._before, self._read()
        wall_s = after[0] - before[0]
        self.frontend_cores = (after[1] - before[1]) / wall_s
        self.device_cores = (after[2] - before[2]) / wall_s

    def _read(self) -> tuple[float, float, float]:
        # Nothing is asked of the server itself: under load its answer would take part of the time that is measured.
        return time.monotonic(), self._frontends.cpu_s(), self._devices.cpu_s()

    @property
    def gpu(self) -> GpuFigures | None:
        """The GPU's figures."""
        return self._gpu.figures


def measure_served(
    server: GpuServer,
    body: Body,
    callers: int,
    *,
    seconds: float,
    gpu_uuid: str,
    generator: OwnGenerator,
    ceiling_rows_per_s: float | None = None,
) -> Served:
    """Load a server with one-row requests, each caller's next as soon as it has its last answer.

    Args:
        seconds: How long answers are counted.
        gpu_uuid: The GPU to watch; empty for the CPU.
        ceiling_rows_per_s: Throughput of the runtime alone.

    Raises:
        GeneratorError: The load generator failed.
    """
    request = server.request(random_rows(1, server.model.row_shape), body)
    meter = Meter(server, gpu_uuid)
    batches = server.batches()
    figures = generator.run(request, callers, seconds, meter)
    return Served(
        server.model.name,
        body,
        len(request.body),
        callers,
        figures.requests_per_s,
        figures.p50_ms,
        figures.p99_ms,
        figures.errors,
        mean_batch_rows(batches, server.batches()),
        meter.gpu,
        meter.frontend_cores,
        meter.device_cores,
        figures.cores or 0.0,
        generator.processes,
        ceiling_rows_per_s,
    )
