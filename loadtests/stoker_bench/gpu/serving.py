"""Models behind the server on a GPU: closed-loop load, with the GPU's figures from the NVIDIA driver."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from stoker_bench.contestants.contest import mean_batch_rows
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.gpu.gpu_watch import GpuFigures, GpuWatch
from stoker_bench.gpu.server import Body, GpuServer

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
        # The server itself is not asked: under load its answer would take part of the measured time.
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
