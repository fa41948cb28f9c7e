"""Measures what a deployment sustains: a server of its own, under closed loops and an open one."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from stoker.profiling.load_tests import Confirmation, LoadTest, RequestCost
from stoker.system.resources import usable_cores
from stoker_bench.contestants.process_tree import machine_busy_s
from stoker_bench.contestants.servers import HOST, RunningServer, deployment_launch, get, post
from stoker_bench.generators.closed_loop import HTTP_OK
from stoker_bench.generators.load_generator import GeneratorError, OwnGenerator
from stoker_bench.generators.scoring_request import ScoringRequest
from stoker_bench.gpu.poisson import PoissonOptions, PoissonRun, highest_rate, run_poisson

SETTLE_S: Final = 0.8
CONNECTIONS: Final = 128
MOST_REQUESTS_PER_S: Final = 20_000.0
"""One process of the generator sends no more."""
CORES_PER_GENERATOR: Final = 4
MOST_GENERATORS: Final = 4
HALVINGS: Final = 6
STEPS: Final = 2
BUSY: Final = 0.85
MANY_OTHERS: Final = 0.3
LEAST_RUN_S: Final = 0.6
MOST_RUN_S: Final = 6.0
CLOSED_LOOP_S: Final = 1.2
# Runs of a search that goes down two times, in the mean, the starts of their processes, and the server's.
_RUNS: Final = 6
_START_S: Final = 4.0
_FRONTEND: Final = "stoker.gateway.frontend"
_COUNTERS: Final = re.compile(
    r"^stoker_(requests|device_busy_seconds)_total(?:\{[^}]*\})? (\S+)", re.MULTILINE
)


def measure_cost(
    deployment: dict[str, Any], question: LoadTest, folder: Path, workspace: Path
) -> RequestCost:
    """Start a server with a deployment, and measure the cost of a request beside its batch in two closed loops.

    Args:
        workspace: The workspace with its registered models; any other folder without any.

    Raises:
        BenchedServerError: The server does not start, or does not answer the request.
        GeneratorError: The load generator fails, or no request was answered.
    """
    with _answering_server(deployment, question, folder, workspace) as (server, request):
        processes = _generators()
        lone = OwnGenerator(settle_s=SETTLE_S).run(request, 1, CLOSED_LOOP_S / 2)
        usage = _Usage(server)
        generator = OwnGenerator(processes, SETTLE_S)
        many = generator.run(request, CONNECTIONS * processes, CLOSED_LOOP_S, during=usage)
        if not lone.requests or not many.requests or not usage.requests:
            raise GeneratorError(
                f"no request was answered within {CLOSED_LOOP_S:g} s, so its cost is unknown; see whether the server "
                "answers it, or give --no-confirm"
            )
        return RequestCost(usage.frontends, usage.frontend_s / usage.requests * 1e6, lone.p50_ms)


def confirm(
    deployment: dict[str, Any], question: LoadTest, seconds: float, folder: Path, workspace: Path
) -> Confirmation:
    """Start a server with a deployment, and find the load that it sustains.

    Args:
        workspace: The workspace with its registered models; any other folder without any.

    Raises:
        BenchedServerError: The server does not start, or does not answer the request.
        GeneratorError: The load generator fails.
    """
    run_s = max(LEAST_RUN_S, min(MOST_RUN_S, (seconds - _START_S) / _RUNS - SETTLE_S))
    processes = _generators()
    options = PoissonOptions(
        question.target_ms,
        processes=processes,
        connections=CONNECTIONS * processes,
        settle_s=SETTLE_S,
    )
    with _answering_server(deployment, question, folder, workspace) as (server, request):
        return _searched(server, request, question, options, run_s)


def _generators() -> int:
    """The number of processes of the generator: with few cores, a second one would take one from the server."""
    return max(1, min(MOST_GENERATORS, usable_cores() // CORES_PER_GENERATOR))


@contextlib.contextmanager
def _answering_server(
    deployment: dict[str, Any], question: LoadTest, folder: Path, workspace: Path
) -> Iterator[tuple[RunningServer, ScoringRequest]]:
    """Start a server, and check that it answers the request."""
    folder.mkdir()
    launch = deployment_launch(deployment, folder, workspace)
    headers = {**question.headers, "Authorization": f"Bearer {launch.key}"}
    request = ScoringRequest(HOST, launch.port, question.path, question.body, headers)
    with RunningServer(launch, folder / "log") as server:
        status, answer = post(HOST, launch.port, request.path, request.body, request.headers)
        if status != HTTP_OK:
            raise server.failed(f"answered the sample request with {status}: {answer[:200]!r}")
        yield server, request


def _searched(
    server: RunningServer, request: ScoringRequest, question: LoadTest, options: PoissonOptions, run_s: float
) -> Confirmation:
    failed: list[tuple[PoissonRun, dict[str, float]]] = []
    seeds = iter(range(1, 1000))

    def run(rate: float, seconds: float = run_s) -> PoissonRun:
        usage = _Usage(server, options.settle_s)
        with usage:
            done = run_poisson(request, rate, seconds, next(seeds), options, loadgen=False)
        if not done.valid:
            failed.append((done, usage.shares(rate, done.cores, options.processes)))
        return done

    def is_borne(rate: float) -> bool:
        # Once more: the first run may have met another program's burst.
        return run(rate).valid or run(rate).valid

    wanted = question.rows_per_s / question.rows
    start = min(wanted, options.processes * MOST_REQUESTS_PER_S)
    # The first requests of a server are slower, and count for no load.
    run(start / 10, LEAST_RUN_S)
    failed.clear()
    rate = borne_load(is_borne, start)
    if rate == wanted:
        return _confirmed(rate, run(rate / 2), question)
    if not failed:
        # All that it sends was sustained.
        return _confirmed(rate, run(rate / 2), question, "generator")
    worst, busy = min(failed, key=lambda one: one[0].rate_per_s)
    at = run(rate / 2) if rate else worst
    return _confirmed(rate, at, question, limit_of(busy), busy)


def _confirmed(
    rate: float,
    at: PoissonRun,
    question: LoadTest,
    limit: str | None = None,
    busy: dict[str, float] | None = None,
) -> Confirmation:
    return Confirmation(rate * question.rows, at.p50_ms, at.p99_ms, limit, busy or {})


def borne_load(is_borne: Callable[[float], bool], wanted: float) -> float:
    """Return the wanted load if it is sustained, else a lower one that is; 0 if there is none."""
    rate = wanted
    for _ in range(HALVINGS):
        if is_borne(rate):
            break
        rate /= 2
    else:
        return 0.0
    if rate == wanted:
        return rate
    return rate + highest_rate(lambda more: is_borne(rate + more), rate, STEPS)


def limit_of(busy: Mapping[str, float]) -> str:
    """Return what allowed no higher load, from what was busy; see `Confirmation`."""
    if busy["all cores"] >= BUSY and busy["other programs"] >= MANY_OTHERS:
        return "cores"
    most = max(("generator", "frontends", "device"), key=lambda name: busy[name])
    if busy[most] >= BUSY:
        return most
    return "cores" if busy["all cores"] >= BUSY else "latency"


class _Usage:
    """The processor time of a server and of the rest of the machine within the context.

    Args:
        delay_s: So much of the beginning does not count.

    Attributes:
        frontends: Number of frontend processes.
        frontend_s: CPU time of the frontends.
        requests: Number of answered requests.
    """

    def __init__(self, server: RunningServer, delay_s: float = 0.0) -> None:
        self._server = server
        self._timer = threading.Timer(delay_s, self._begin)
        self._frontends = [psutil.Process(pid) for pid in server.tree.named(_FRONTEND)]
        self.frontends = len(self._frontends)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def _begin(self) -> None:
        self._begun = self._read()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.join()
        spent = [after - before for after, before in zip(self._read(), self._begun, strict=True)]
        self._elapsed_s, self.frontend_s, self._server_s, self._machine_s, requests, self._device_s = spent
        self.requests = round(requests)

    def _read(self) -> tuple[float, ...]:
        launch = self._server.launch
        frontend_s = sum(sum(process.cpu_times()[:2]) for process in self._frontends)
        counted = {"requests": 0.0, "device_busy_seconds": 0.0}
        for name, value in _COUNTERS.findall(get(HOST, launch.port, "/metrics", launch.key)[1].decode()):
            counted[name] += float(value)
        return (
            time.monotonic(),
            frontend_s,
            self._server.tree.cpu_s(),
            machine_busy_s(),
            *counted.values(),
        )

    def shares(self, rate: float, generator_cores: float, generators: int) -> dict[str, float]:
        """Return the shares of `Confirmation.busy` at a rate of requests.

        Args:
            generator_cores: Cores that the generator's processes kept busy.
            generators: Number of them.
        """
        # Runs that are overloaded end early, so the cost of a request is what they tell.
        times = rate / max(1, self.requests)
        others = max(0.0, (self._machine_s - self._server_s) / self._elapsed_s - generator_cores)
        own = generator_cores + self._server_s * times
        machine = psutil.cpu_count() or 1
        busy = {
            "generator": generator_cores / generators,
            "frontends": self.frontend_s * times / max(1, self.frontends),
            "device": self._device_s * times,
            "other programs": others / machine,
            "all cores": max(own / usable_cores(), (own + others) / machine),
        }
        return {name: min(1.0, share) for name, share in busy.items()}
