"""The highest rate of Poisson arrivals that a server answers within a latency limit: MLPerf's server scenario."""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from stoker_bench.generators.load_generator import outputs_of, shares_of
from stoker_bench.generators.scoring_request import ScoringRequest
from stoker_bench.gpu.arrivals import loadgen_version

DRAIN_S: Final = 10.0
PERCENTILE: Final = 99
BACK_OFF: Final = 0.97
CONFIRMATIONS: Final = 3


@dataclass(frozen=True)
class PoissonOptions:
    """How the rate is searched for.

    Attributes:
        limit_ms: Limit of the 99th percentile.
        seconds: Duration of each trial.
        confirm_seconds: Duration of the confirming run with other arrivals.
        steps: Number of halvings of the range of rates.
        least: The lowest rate of that range, of the ceiling.
        processes: Number of processes that share the arrivals; the sum of their Poisson processes is one.
        connections: Number of kept-alive connections of all processes.
        seed: Seed of the arrivals.
        settle_s: Time before the first arrival, in which processes start and connect.
    """

    limit_ms: float = 15.0
    seconds: float = 4.0
    confirm_seconds: float = 8.0
    steps: int = 6
    least: float = 0.0
    processes: int = 4
    connections: int = 1024
    seed: int = 1
    settle_s: float = 2.0


@dataclass(frozen=True)
class PoissonRun:
    """One rate that was tried.

    Attributes:
        errors: Requests without an answer of 2xx.
        p50_ms, p99_ms: Latency from when a request was due to its answer. From LoadGen: the largest percentile of its
            processes, which that of all cannot exceed.
        overloaded: Whether more than 1 % exceeded the limit, so that the run was cut short; its percentiles are those
            of the answers so far.
        valid: Whether the percentile was within the limit and nothing failed.
        cores: Cores that the generator kept busy.
    """

    rate_per_s: float
    queries: int
    errors: int
    p50_ms: float
    p99_ms: float
    overloaded: bool
    valid: bool
    cores: float


@dataclass(frozen=True)
class PoissonSearch:
    """The results of a search.

    Attributes:
        generator: The source of the arrivals.
        rate_per_s: The highest confirmed rate; 0 without one.
        runs: All trials, in order.
        ceiling_rows_per_s: The offline rate.
    """

    generator: str
    rate_per_s: float
    runs: tuple[PoissonRun, ...]
    ceiling_rows_per_s: float

    @property
    def of_ceiling(self) -> float:
        """The rate over the offline rate."""
        return self.rate_per_s / self.ceiling_rows_per_s

    @property
    def best(self) -> PoissonRun | None:
        """The run that confirmed the rate."""
        return next((run for run in reversed(self.runs) if run.valid), None) if self.rate_per_s else None


def highest_rate(is_valid: Callable[[float], bool], upper: float, steps: int, lower: float = 0.0) -> float:
    """Return the highest rate below `upper` that was found valid by halving the range; `lower` if none was."""
    for _ in range(steps):
        middle = (lower + upper) / 2
        if is_valid(middle):
            lower = middle
        else:
            upper = middle
    return lower


def confirmed_rate(is_valid: Callable[[float], bool], rate: float) -> float:
    """Return the rate if it is valid once more, else the next lower one that is; 0 if a few are not.

    A rate at the edge sometimes passes by chance, and the search keeps what passed.
    """
    for _ in range(CONFIRMATIONS):
        if rate and is_valid(rate):
            return rate
        rate *= BACK_OFF
    return 0.0


def search_poisson(
    request: ScoringRequest, ceiling_rows_per_s: float, options: PoissonOptions
) -> PoissonSearch:
    """Search for the highest valid rate of one-row requests.

    Args:
        ceiling_rows_per_s: The offline rate; no higher one is tried.

    Raises:
        GeneratorError: A generator failed.
    """
    version = loadgen_version()
    runs: list[PoissonRun] = []

    def is_valid(rate: float, seconds: float, seed: int) -> bool:
        runs.append(run_poisson(request, rate, seconds, seed, options, loadgen=version is not None))
        return runs[-1].valid

    found = highest_rate(
        lambda rate: is_valid(rate, options.seconds, options.seed),
        ceiling_rows_per_s,
        options.steps,
        options.least * ceiling_rows_per_s,
    )
    rate = confirmed_rate(
        lambda rate: is_valid(rate, options.confirm_seconds, options.seed + 1 + len(runs)), found
    )
    generator = f"MLPerf LoadGen {version}" if version else "a schedule of the bench's own"
    return PoissonSearch(generator, rate, tuple(runs), ceiling_rows_per_s)


def run_poisson(
    request: ScoringRequest, rate: float, seconds: float, seed: int, options: PoissonOptions, *, loadgen: bool
) -> PoissonRun:
    """Run one rate, shared by several processes.

    Raises:
        GeneratorError: One of them failed.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        message = Path(folder, "request")
        message.write_bytes(request.http_bytes)
        share_per_s = rate / options.processes
        command = loop_command(request, message, share_per_s, seconds, options.limit_ms, options.settle_s)
        command += ["--loadgen"] if loadgen else []
        files = [Path(folder, f"{number}.npy") for number in range(options.processes)]
        shares = shares_of(options.connections, options.processes)
        commands = [
            [
                *command,
                *("--connections", str(max(1, share)), "--latencies", str(file)),
                # Equal seeds would make clumps of their arrivals.
                *("--seed", str(seed * 1000 + number)),
            ]
            for number, (share, file) in enumerate(zip(shares, files, strict=True))
        ]
        outputs = outputs_of(commands, options.settle_s + seconds + DRAIN_S)
        latencies_s = np.concatenate([np.load(file) for file in files])
    return combined_run(rate, [orjson.loads(output) for output in outputs], latencies_s, options.limit_ms)


def loop_command(
    request: ScoringRequest, message: Path, rate: float, seconds: float, limit_ms: float, settle_s: float
) -> list[str]:
    """How to start one process of `stoker_bench.gpu.poisson_loop`, but for its share of connections and its files.

    Args:
        message: A file with the request's bytes.
        rate: Mean rate of the arrivals, per second.
        limit_ms: Limit of the 99th percentile.
        settle_s: Time from now to the first arrival.
    """
    command = [sys.executable, "-m", "stoker_bench.gpu.poisson_loop", "--host", request.host]
    command += ["--port", str(request.port), "--request", str(message), "--seconds", str(seconds)]
    command += ["--limit-ms", str(limit_ms), "--rate", str(rate)]
    return [*command, "--begin", str(time.monotonic() + settle_s)]


def combined_run(
    rate: float, results: list[dict[str, Any]], latencies_s: np.ndarray, limit_ms: float
) -> PoissonRun:
    """Combine the results of the processes of one run.

    Args:
        rate: The rate of all processes.
        results: The `queries`, `errors`, `overloaded`, `cores` and LoadGen's `p99_ms` (None without) of each process.
        latencies_s: All latencies, as measured by the processes.
        limit_ms: Limit of the 99th percentile.
    """
    errors = int(sum(each["errors"] for each in results))
    overloaded = any(each["overloaded"] for each in results)
    p50_ms, p99_ms = (math.inf, math.inf)
    if len(latencies_s):
        p50_ms, p99_ms = (np.percentile(latencies_s, (50, PERCENTILE)) * 1e3).tolist()
    by_loadgen = [each["p99_ms"] for each in results if each["p99_ms"] is not None]
    # In a run that was cut short, LoadGen counts all queries as answered.
    if by_loadgen and not overloaded:
        p99_ms = max(by_loadgen)
    valid = p99_ms <= limit_ms and not errors and not overloaded
    queries = int(sum(each["queries"] for each in results))
    cores = sum(each["cores"] for each in results)
    return PoissonRun(rate, queries, errors, p50_ms, p99_ms, overloaded, valid, cores)
