"""Memory of a device process while requests of random numbers of rows come in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker_bench.gpu.sized_requests import SizedRequests
from stoker_bench.gpu.timeline import TimedLoad, told
from stoker_bench.gpu.watch import process_memory_bytes

if TYPE_CHECKING:
    from stoker_bench.gpu.server import GpuServer

__all__ = ["MemoryOptions", "MemoryRun", "MemorySample", "memory_run"]

SETTLED_SHARE = 0.1


@dataclass(frozen=True)
class MemoryOptions:
    """How long memory is watched, and under which load.

    Attributes:
        gpu_uuid: Where the server runs; empty for the CPU.
        seconds: How long.
        max_rows: Requests have 1 to so many rows.
        callers: Each with one request under way at a time.
        sample_s: Time between readings.
    """

    gpu_uuid: str
    seconds: float
    max_rows: int
    callers: int = 8
    sample_s: float = 1.0


@dataclass(frozen=True)
class MemorySample:
    """Memory of the device processes at one moment.

    Attributes:
        at_s: Seconds since the load began.
        gpu_bytes: On the GPU; None without one.
        host_bytes: Proportional set size.
    """

    at_s: float
    gpu_bytes: int | None
    host_bytes: int


@dataclass(frozen=True)
class MemoryRun:
    """What was read.

    Attributes:
        model: The model's name.
        seconds: How long the load lasted.
        requests: Requests answered with 2xx.
        told: What the callers got, by how often.
        samples: All readings; the first is from before the load.
    """

    model: str
    seconds: float
    requests: int
    told: dict[str, int]
    samples: tuple[MemorySample, ...]

    @property
    def errors(self) -> int:
        """Requests that failed."""
        return sum(self.told.values()) - self.requests

    @property
    def settled(self) -> MemorySample:
        """The first reading after a tenth of the time, when every size of batch has been there."""
        return next(
            (sample for sample in self.samples if sample.at_s >= SETTLED_SHARE * self.seconds),
            self.samples[-1],
        )

    def growth_bytes(self, *, gpu: bool) -> int | None:
        """Return how much more was held at the end than when it had settled."""
        if not gpu:
            return self.samples[-1].host_bytes - self.settled.host_bytes
        last, settled = self.samples[-1].gpu_bytes, self.settled.gpu_bytes
        return last - settled if last is not None and settled is not None else None


def memory_run(server: GpuServer, options: MemoryOptions) -> MemoryRun:
    """Load a server for a while, and read its device processes' memory."""
    requests = SizedRequests(server, options.max_rows)
    template = requests.template
    samples = [_sample(server, options.gpu_uuid, 0.0)]
    began_s = time.monotonic()
    with TimedLoad(template.host, template.port, requests.random, options.callers) as load:
        while (at_s := time.monotonic() - began_s) < options.seconds:
            time.sleep(min(options.sample_s, options.seconds - at_s))
            samples.append(_sample(server, options.gpu_uuid, time.monotonic() - began_s))
    answers = load.answers
    succeeded = sum(answer.succeeded for answer in answers)
    return MemoryRun(server.model.name, options.seconds, succeeded, told(answers), tuple(samples))


def _sample(server: GpuServer, gpu_uuid: str, at_s: float) -> MemorySample:
    pids = server.devices()
    host_bytes = sum(server.tree.memory_of(pid).pss_bytes for pid in pids)
    return MemorySample(at_s, process_memory_bytes(gpu_uuid, pids), host_bytes)
