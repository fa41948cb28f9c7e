"""Many models on one GPU: loaded on demand within a budget, sharing the device, and losing their device process."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.contestants.servers import post
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import ScoringRequest
from stoker_bench.gpu.server import GpuServer
from stoker_bench.gpu.used_memory import used_bytes

_OK: Final = 200
_CALLERS: Final = 4
_NOTICED_S: Final = 10.0
_POLL_S: Final = 0.02
_DEVICE_MODULE: Final = "stoker.device.process"


@dataclass
class DemandFigures:
    """A load of models that are loaded when they are asked for.

    Attributes:
        right: Right answers of models that were not loaded before, or may not have been.
        wrong: Answers with another model's numbers.
        slowdown: The p99 of a model that is always loaded, over its p99 without the others.
        memory_bytes: The memory of the device that was used more than before, at each second.
    """

    right: int = 0
    wrong: int = 0
    slowdown: float = 0.0
    memory_bytes: list[int] = field(default_factory=list)


def load_on_demand(
    server: GpuServer, expected: Sequence[NDArray[np.float32]], rows: NDArray[np.float32], seconds: float
) -> DemandFigures:
    """Ask one model all the time, and the others in random order.

    Args:
        expected: By model its outputs for `rows`.
    """
    figures, lock = DemandFigures(), threading.Lock()
    requests = [server.request(rows, number) for number in range(len(expected))]
    generator = OwnGenerator(1, 0.5)
    if not _answers_right(server, requests[0], expected[0]):
        raise BenchedServerError("the model that is to stay loaded has not answered, or wrongly")
    alone = generator.run(requests[0], _CALLERS, max(1.0, seconds / 4))
    ends_s = time.monotonic() + seconds

    def visit(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  # no secret
        while time.monotonic() < ends_s:
            number = chance.randrange(1, len(requests))
            is_right = _answers_right(server, requests[number], expected[number])
            with lock:
                figures.right += is_right is True
                figures.wrong += is_right is False

    with ThreadPoolExecutor(_CALLERS) as visitors, _memory_each_second(figures.memory_bytes):
        visits = [visitors.submit(visit, seed) for seed in range(_CALLERS)]
        beside = generator.run(requests[0], _CALLERS, seconds)
        for visit_of in visits:
            visit_of.result()
    if alone.errors or beside.errors or not beside.requests:
        raise BenchedServerError(
            f"{alone.errors + beside.errors} requests to a loaded model failed, or none was answered"
        )
    figures.slowdown = beside.p99_ms / alone.p99_ms
    return figures


def _answers_right(server: GpuServer, request: ScoringRequest, expected: NDArray[np.float32]) -> bool | None:
    """Whether an answer has a model's numbers; None if there was none."""
    status, body = post(request.host, request.port, request.path, request.body, request.headers)
    return server.is_close(body, expected) if status == _OK else None


@contextmanager
def _memory_each_second(more_bytes: list[int]) -> Iterator[None]:
    """Append each second how much more of the memory of all GPUs is used than at the beginning, if there are any."""
    try:
        before_bytes = used_bytes()
    except BenchedServerError:
        yield
        return
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(1.0):
            more_bytes.append(used_bytes() - before_bytes)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        stopped.set()
        watching.join()


def share_fairly(server: GpuServer, models: int, rows: NDArray[np.float32], seconds: float) -> float:
    """Load all models alike at the same time; returns the lowest rate over the mean one."""
    generator = OwnGenerator(1, 1.5)

    def load(number: int) -> float:
        figures = generator.run(server.request(rows, number), 4 * _CALLERS, seconds)
        if figures.errors:
            raise BenchedServerError(f"{figures.errors} requests to the model {number} failed")
        return figures.requests_per_s

    with ThreadPoolExecutor(models) as loading:
        rates = list(loading.map(load, range(models)))
    return min(rates) / (sum(rates) / models)


def lose_device(
    server: GpuServer, rows: NDArray[np.float32], clock_s: Callable[[], float] = time.monotonic
) -> float:
    """Kill the device process; returns the seconds until a caller is told that the model is not there."""
    request = server.request(rows)
    if not server.kill_processes(_DEVICE_MODULE):
        raise BenchedServerError("the server has no device process")
    killed_s = clock_s()
    while post(request.host, request.port, request.path, request.body, request.headers)[0] == _OK:
        if clock_s() - killed_s > _NOTICED_S:
            raise BenchedServerError(f"the loss was not noticed within {_NOTICED_S:.0f} s")
        time.sleep(_POLL_S)
    return clock_s() - killed_s
