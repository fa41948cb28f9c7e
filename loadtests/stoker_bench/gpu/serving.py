"""Closed-loop load on a served model: rows a second, latencies, and what each side spent on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from stoker_bench.contestants.loaded_server import mean_batch_rows
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.gpu.watch import GpuWatch

if TYPE_CHECKING:
    from types import TracebackType

    from stoker_bench.generators.load_generator import OwnGenerator
    from stoker_bench.gpu.server import Body, GpuServer
    from stoker_bench.gpu.watch import GpuFigures

__all__ = ["Meter", "Served", "measure_served"]

SATURATED_SHARE = 0.9


@dataclass(frozen=True)
class Served:
    """What callers of one model saw, each with one row under way at a time.

    Attributes:
        model: The model's name.
        body: What their bodies were, `binary` or `json`.
        body_bytes: Size of each.
        callers: How many there were.
        rows_per_s: Rows answered, one a request.
        p50_ms, p99_ms: Latencies.
        errors: Answers other than 2xx, and broken connections.
        mean_batch_rows: Rows a batch, from when the callers began to when the last of them had ended.
        gpu: What the GPU did; None without one.
        frontend_cores: Cores that the HTTP processes kept busy.
        device_cores: Cores that the device processes kept busy.
        generator_cores: Cores that the load generator kept busy.
        generator_processes: Most cores that it could have used.
        ceiling_rows_per_s: What the runtime reaches alone, measured in the same run; None if it was not.
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
        """The rate over what the runtime reaches alone."""
        return self.rows_per_s / self.ceiling_rows_per_s if self.ceiling_rows_per_s else None

    @property
    def generator_saturated(self) -> bool:
        """Whether the load generator had hardly a core left, so that the server may be faster than it seems."""
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
        """What the GPU did."""
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
        server: A server that is ready.
        body: What bodies are sent.
        callers: How many there are.
        seconds: How long answers are counted.
        gpu_uuid: The GPU whose figures are read; empty for the CPU.
        generator: What makes the load.
        ceiling_rows_per_s: What the runtime reaches alone.

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
