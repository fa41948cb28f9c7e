"""Faults and memory under load: killed processes, too little GPU memory, and growth; every answer is recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import uvloop

from stoker_bench.contestants.contest import mean_batch_rows
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.closed_loop import HttpCaller, is_success, keep_connected
from stoker_bench.generators.scoring_request import binary_description, binary_headers, random_rows
from stoker_bench.gpu.models import as_sent
from stoker_bench.gpu.server import GpuServer
from stoker_bench.gpu.serving import process_memory_bytes

NO_ANSWER = "connection ended"
NO_CONNECTION = "connection refused"
AFTER_FAILURE_S = 0.01
"""Callers that fail at once would otherwise do nothing but fail."""
ERROR_CODE = b"x-stoker-error-code"

Parts = tuple["bytes | memoryview", ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one request; times are readings of `time.monotonic`.

    Attributes:
        began_s: When the request was sent.
        ended_s: When its answer was complete, or the connection ended.
        status: The HTTP status; 0 without an answer.
        what: The status with the error's code, or how the connection failed.
    """

    began_s: float
    ended_s: float
    status: int
    what: str

    @property
    def succeeded(self) -> bool:
        """Whether the status is one of 2xx."""
        return is_success(self.status)


def count_answers(answers: Sequence[Answer]) -> dict[str, int]:
    """Count the answers of callers, the most frequent first."""
    return dict(Counter(answer.what for answer in answers).most_common())


@dataclass
class _State:
    """The shared state of the callers."""

    next_request: Callable[[], Parts]
    answers: list[Answer] = field(default_factory=list)
    closing: bool = False


class _TimedCaller(HttpCaller):
    """One caller: sends the next request as soon as it has its answer, or a moment after a failure."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self._state = state
        self._code = ""

    def opened(self) -> None:
        self._ask()

    def _ask(self) -> None:
        if self._state.closing or self.lost.done():
            return
        self._code = ""
        self._began_s = time.monotonic()
        self.send_parts(self._state.next_request())

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == ERROR_CODE:
            self._code = value.decode("latin-1")

    def answered(self, status: int, kept: bool) -> None:
        self._note(status, f"{status} {self._code}".strip())
        if not kept:
            return
        if is_success(status):
            self._ask()
        else:
            asyncio.get_running_loop().call_later(AFTER_FAILURE_S, self._ask)

    def dropped(self) -> None:
        self._note(0, NO_ANSWER)

    def _note(self, status: int, what: str) -> None:
        if not self._state.closing:
            self._state.answers.append(Answer(self._began_s, time.monotonic(), status, what))


class TimedLoad:
    """Closed-loop load from a thread of this process; a context manager.

    Args:
        next_request: Returns the bytes of each request, in parts; called from the thread.
    """

    def __init__(self, host: str, port: int, next_request: Callable[[], Parts], callers: int) -> None:
        self._address = (host, port)
        self._callers = callers
        self._state = _State(next_request)
        self._loop: Any = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def answers(self) -> list[Answer]:
        """The answers so far, in order."""
        return list(self._state.answers)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._load())
        finally:
            self._loop.close()

    async def _load(self) -> None:
        tasks = [asyncio.create_task(self._keep_calling()) for _ in range(self._callers)]
        await self._stop.wait()
        self._state.closing = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_calling(self) -> None:
        def refused(tried_s: float) -> None:
            self._state.answers.append(Answer(tried_s, time.monotonic(), 0, NO_CONNECTION))

        await keep_connected(*self._address, lambda: _TimedCaller(self._state), refused)


def wait_for(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(poll_s)
    return True


DISTINCT_ROWS = 8
MAX_BODY_BYTES = 96 << 20
"""Largest body: below the server's limit, to leave room for the description."""


class SizedRequests:
    """Binary requests to one server."""

    def __init__(self, server: GpuServer, max_rows: int, seed: int = 1) -> None:
        model = server.model
        self._model = model
        self.max_rows = max(1, min(max_rows, MAX_BODY_BYTES // model.row_bytes))
        self._sizes = np.random.default_rng(seed)
        self._heads: dict[int, bytes] = {}
        rows = as_sent(random_rows(DISTINCT_ROWS, model.row_shape), model.wire_dtype)
        repeated: Any = np.resize(rows, (self.max_rows, *model.row_shape))
        self._rows = memoryview(repeated.reshape(-1).view(np.uint8))
        self.template = server.request(random_rows(1, model.row_shape))

    def of(self, rows: int) -> tuple[bytes, memoryview]:
        """Return the head and the rows of a request."""
        size = rows * self._model.row_bytes
        if rows not in self._heads:
            dtype = np.dtype(self._model.wire_dtype)
            description = binary_description(self._model.input_name, (rows, *self._model.row_shape), dtype)
            headers = {**self.template.headers, **binary_headers(description)}
            request = dataclasses.replace(self.template, headers=headers)
            self._heads[rows] = request.http_head(len(description) + size) + description
        return self._heads[rows], self._rows[:size]

    def random(self) -> tuple[bytes, memoryview]:
        """Return a request of 1 to `max_rows` rows, every number equally often."""
        return self.of(int(self._sizes.integers(1, self.max_rows, endpoint=True)))


@dataclass(frozen=True)
class FaultOptions:
    """The load, and how long it is observed.

    Attributes:
        callers: Each with one request in flight.
        seconds: Duration of the load before a fault, and after the recovery.
        timeout_s: How long to wait for a recovery.
        max_rows: Maximum rows of requests to the server with too little memory.
    """

    callers: int = 64
    seconds: float = 3.0
    timeout_s: float = 120.0
    max_rows: int = 256


@dataclass(frozen=True)
class KillRun:
    """A device process was ended by SIGKILL under load.

    Attributes:
        before_per_s: Successful requests per second before the kill.
        after_per_s: The same after the recovery.
        recovery_s: Time from the signal to the first success of a later request; None without one.
        lost: Requests that failed, from the signal on.
        told: Answers from the signal to the recovery, by number.
        longest_wait_s: The longest wait for any answer.
    """

    model: str
    callers: int
    before_per_s: float
    after_per_s: float
    recovery_s: float | None
    lost: int
    told: dict[str, int]
    longest_wait_s: float


@dataclass(frozen=True)
class MemoryShortage:
    """Batches did not fit into the GPU memory that the model may take.

    Attributes:
        memory_mb: The memory limit.
        max_rows: Maximum rows of a request.
        requests: Successful requests.
        told: Answers by number; empty if the server did not start.
        restarts: Device processes that ended meanwhile.
        mean_batch_rows: Mean rows per batch; None without batches.
        ready: Whether the server was ready at the end, and scored.
        failure: Why the server did not start; empty if it did.
    """

    model: str
    memory_mb: int
    max_rows: int
    requests: int = 0
    told: dict[str, int] | None = None
    restarts: int = 0
    mean_batch_rows: float | None = None
    ready: bool = False
    failure: str = ""


def recovery_s(answers: Sequence[Answer], fault_s: float) -> float | None:
    """Return the seconds from a fault until the first success of a request sent after it; None without one."""
    ended = [answer.ended_s for answer in answers if answer.succeeded and answer.began_s > fault_s]
    return min(ended) - fault_s if ended else None


def kill_run(server: GpuServer, options: FaultOptions) -> KillRun:
    """Kill a device process of a server under load, and watch until it answers again and some time longer.

    Raises:
        BenchedServerError: The server has no device process.
    """
    pids = server.devices()
    if not pids:
        raise BenchedServerError("the server has no device process that could be killed")
    requests = SizedRequests(server, 1)
    request = requests.of(1)
    template = requests.template
    with TimedLoad(template.host, template.port, lambda: request, options.callers) as load:
        time.sleep(options.seconds)
        already = len(load.answers)
        fault_s = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        wait_for(lambda: recovery_s(load.answers[already:], fault_s) is not None, options.timeout_s)
        time.sleep(options.seconds)
        ended_s = time.monotonic()
    return summarise_kill(
        server.model.name,
        options,
        load.answers,
        began_s=fault_s - options.seconds,
        fault_s=fault_s,
        ended_s=ended_s,
    )


def summarise_kill(
    model: str,
    options: FaultOptions,
    answers: Sequence[Answer],
    *,
    began_s: float,
    fault_s: float,
    ended_s: float,
) -> KillRun:
    """Compute the figures before and after a fault."""
    taken_s = recovery_s(answers, fault_s)
    recovered_s = fault_s + taken_s if taken_s is not None else ended_s
    before = [answer for answer in answers if answer.succeeded and answer.ended_s <= fault_s]
    after = [answer for answer in answers if answer.succeeded and answer.ended_s > recovered_s]
    between = [answer for answer in answers if fault_s < answer.ended_s <= recovered_s]
    left_s = ended_s - recovered_s
    return KillRun(
        model,
        options.callers,
        len(before) / (fault_s - began_s),
        len(after) / left_s if left_s > 0 else 0.0,
        taken_s,
        sum(not answer.succeeded for answer in answers if answer.ended_s > fault_s),
        count_answers(between),
        max((answer.ended_s - answer.began_s for answer in answers), default=0.0),
    )


def shortage_run(server: GpuServer, memory_mb: int, options: FaultOptions) -> MemoryShortage:
    """Load a server whose largest batches do not fit into its GPU memory."""
    requests = SizedRequests(server, options.max_rows)
    template = requests.template
    seen = set(server.devices())
    before = server.batches()
    with TimedLoad(template.host, template.port, requests.random, options.callers) as load:
        ends_s = time.monotonic() + 2 * options.seconds
        while time.monotonic() < ends_s:
            seen |= set(server.devices())
            time.sleep(0.1)
    living = set(server.devices())
    answers = load.answers
    return MemoryShortage(
        server.model.name,
        memory_mb,
        requests.max_rows,
        sum(answer.succeeded for answer in answers),
        count_answers(answers),
        len(seen - living),
        mean_batch_rows(before, server.batches()),
        ready=wait_for(server.answers, options.timeout_s),
    )


SETTLED_SHARE = 0.1


@dataclass(frozen=True)
class MemoryOptions:
    """How long memory is watched, and under which load.

    Attributes:
        gpu_uuid: The server's GPU; empty for the CPU.
        seconds: Duration.
        max_rows: Maximum rows of a request.
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
        gpu_bytes: GPU memory; None without one.
        host_bytes: Proportional set size.
    """

    at_s: float
    gpu_bytes: int | None
    host_bytes: int


@dataclass(frozen=True)
class MemoryRun:
    """A reading.

    Attributes:
        seconds: Duration of the load.
        requests: Successful requests.
        told: Answers by number.
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
        """Return how much memory use grew from when it had settled to the end."""
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
    return MemoryRun(server.model.name, options.seconds, succeeded, count_answers(answers), tuple(samples))


def _sample(server: GpuServer, gpu_uuid: str, at_s: float) -> MemorySample:
    pids = server.devices()
    host_bytes = sum(server.tree.memory_of(pid).pss_bytes for pid in pids)
    return MemorySample(at_s, process_memory_bytes(gpu_uuid, pids), host_bytes)
