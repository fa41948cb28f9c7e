"""Poisson arrivals of queries: by MLPerf's LoadGen, or drawn beforehand where it has no wheel (decision 67)."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker_bench.generators.load_generator import GeneratorError


class Query(NamedTuple):
    """A query that is due: its source's token for it, and the reading of `time.monotonic` when it was."""

    token: int
    due_s: float


class Arrivals(Protocol):
    """A source of queries."""

    def run(self, issue: Callable[[Query], None], stopped: threading.Event) -> None:
        """Issue every query when it is due, until the last one or until stopped."""

    def complete(self, query: Query) -> None:
        """Called when a query has been answered."""

    def p99_ms(self) -> float | None:
        """Return the 99th percentile that the source itself has seen, if it does."""


def arrival_times_s(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Return the times within `seconds` at which a Poisson process of some rate has its arrivals."""
    random = np.random.default_rng(seed)
    likely = rate * seconds
    times_s: NDArray[np.float64] = np.empty(0)
    while not len(times_s) or times_s[-1] < seconds:
        gaps_s = random.exponential(1 / rate, int(likely + 4 * likely**0.5) + 16)
        times_s = np.concatenate([times_s, (times_s[-1] if len(times_s) else 0) + gaps_s.cumsum()])
    return times_s[times_s < seconds]


class Schedule:
    """Arrivals drawn beforehand."""

    def __init__(self, rate: float, seconds: float, seed: int) -> None:
        self._times_s = arrival_times_s(rate, seconds, seed)

    def run(self, issue: Callable[[Query], None], stopped: threading.Event) -> None:
        """See Arrivals.run."""
        begin_s = time.monotonic()
        for token, offset_s in enumerate(self._times_s.tolist()):
            due_s = begin_s + offset_s
            while (left_s := due_s - time.monotonic()) > 0:
                time.sleep(left_s)
            if stopped.is_set():
                return
            issue(Query(token, due_s))

    def complete(self, query: Query) -> None:
        """See Arrivals.complete."""

    def p99_ms(self) -> None:
        """See Arrivals.p99_ms."""


MODULE: Final = "mlperf_loadgen"
PACKAGE: Final = "mlcommons-loadgen"
SUMMARY: Final = "mlperf_log_summary.txt"
P99: Final = re.compile(r"^99\.00 percentile latency \(ns\)\s*:\s*(\d+)", re.MULTILINE)
NS_A_MS: Final = 1e6


def loadgen_version() -> str | None:
    """Return the installed version; None without one."""
    if util.find_spec(MODULE) is None:
        return None
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def percentile_ms(summary: str) -> float:
    """Return the 99th percentile from LoadGen's summary.

    Raises:
        GeneratorError: It is not there.
    """
    found = P99.search(summary)
    if found is None:
        raise GeneratorError(f"LoadGen reported no percentile; its summary: {summary.strip() or 'empty'}")
    return int(found[1]) / NS_A_MS


class LoadGen:
    """Arrivals by LoadGen. All queries are one request, so there is no library of samples."""

    def __init__(self, rate: float, seconds: float, seed: int) -> None:
        self._rate = rate
        self._seconds = seconds
        self._seed = seed
        self._p99_ms: float | None = None

    def run(self, issue: Callable[[Query], None], stopped: threading.Event) -> None:
        """See Arrivals.run; LoadGen returns once all of its queries have been completed, and is never stopped."""
        import mlperf_loadgen as loadgen

        del stopped
        self._loadgen: Any = loadgen

        def on_queries(samples: list[Any]) -> None:
            now_s = time.monotonic()
            for sample in samples:
                issue(Query(sample.id, now_s))

        def nothing(*_: object) -> None:
            """There are no samples to load, and no queue to flush."""

        sut = loadgen.ConstructSUT(on_queries, nothing)
        samples = loadgen.ConstructQSL(1, 1, nothing, nothing)
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            try:
                loadgen.StartTestWithLogSettings(sut, samples, self._settings(), _logs(loadgen, folder), "")
            finally:
                loadgen.DestroyQSL(samples)
                loadgen.DestroySUT(sut)
            self._p99_ms = percentile_ms(Path(folder, SUMMARY).read_text())

    def _settings(self) -> Any:
        settings = self._loadgen.TestSettings()
        settings.scenario = self._loadgen.TestScenario.Server
        settings.mode = self._loadgen.TestMode.PerformanceOnly
        settings.server_target_qps = self._rate
        # Whether a run is valid is decided over all processes; LoadGen's own word for it is not used.
        settings.server_target_latency_percentile = 0.99
        settings.min_duration_ms = 0
        settings.min_query_count = settings.max_query_count = max(1, round(self._rate * self._seconds))
        settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = self._seed
        return settings

    def complete(self, query: Query) -> None:
        """See Arrivals.complete."""
        self._loadgen.QuerySamplesComplete([self._loadgen.QuerySampleResponse(query.token, 0, 0)])

    def p99_ms(self) -> float | None:
        """See Arrivals.p99_ms."""
        return self._p99_ms


def _logs(loadgen: Any, folder: str) -> Any:
    output = loadgen.LogOutputSettings()
    output.outdir = folder
    output.copy_summary_to_stdout = False
    logs = loadgen.LogSettings()
    logs.log_output = output
    logs.enable_trace = False
    return logs
