"""A device process that dies under load, and one with too little GPU memory: what callers get, and for how long."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker_bench.contestants.loaded_server import mean_batch_rows
from stoker_bench.errors import BenchedServerError
from stoker_bench.gpu.sized_requests import SizedRequests
from stoker_bench.gpu.timeline import TimedLoad, told, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker_bench.gpu.server import GpuServer
    from stoker_bench.gpu.timeline import Answer

__all__ = ["FaultOptions", "KillRun", "MemoryShortage", "kill_run", "recovery_s", "shortage_run"]


@dataclass(frozen=True)
class FaultOptions:
    """The load, and how long it is watched.

    Attributes:
        callers: Each with one request under way at a time.
        seconds: Length of the load before a fault, and after the recovery from it.
        timeout_s: How long a recovery is waited for.
        max_rows: Requests to the server with too little memory have 1 to so many rows.
    """

    callers: int = 64
    seconds: float = 3.0
    timeout_s: float = 120.0
    max_rows: int = 256


@dataclass(frozen=True)
class KillRun:
    """A device process was ended by SIGKILL under load.

    Attributes:
        model: The model's name.
        callers: Each with one request of one row under way.
        before_per_s: Requests answered with 2xx a second, before.
        after_per_s: The same, after the recovery.
        recovery_s: From the signal until the first success of a request sent after it; None if there was none.
        lost: Requests that failed, from the signal on.
        told: What callers got from the signal until the recovery, by how often.
        longest_wait_s: The longest that a caller waited for any answer.
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
        model: The model's name.
        memory_mb: What it may take.
        max_rows: Requests had 1 to so many rows.
        requests: Requests answered with 2xx.
        told: What callers got, by how often; empty if the server did not start.
        restarts: Device processes that ended meanwhile.
        mean_batch_rows: Rows a batch; None if none was run.
        ready: Whether the server said at the end that it can score, and did.
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
    """Make figures of what was answered before and after a fault."""
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
        told(between),
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
        told(answers),
        len(seen - living),
        mean_batch_rows(before, server.batches()),
        ready=wait_for(server.answers, options.timeout_s),
    )
