"""Arrivals by MLPerf's load generator (the package mlcommons-loadgen), in its server scenario.

Source: https://github.com/mlcommons/inference/tree/master/loadgen
"""

from __future__ import annotations

import re
import tempfile
import time
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker_bench.generators.load_generator import GeneratorError
from stoker_bench.gpu.arrivals import Query

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any

__all__ = ["LoadGen", "loadgen_version", "percentile_ms"]

MODULE: Final = "mlperf_loadgen"
PACKAGE: Final = "mlcommons-loadgen"
SUMMARY: Final = "mlperf_log_summary.txt"
P99: Final = re.compile(r"^99\.00 percentile latency \(ns\)\s*:\s*(\d+)", re.MULTILINE)
NS_A_MS: Final = 1e6


def loadgen_version() -> str | None:
    """Return the version that is installed; None where it is not."""
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
        raise GeneratorError(f"LoadGen told no percentile; its summary: {summary.strip() or 'empty'}")
    return int(found[1]) / NS_A_MS


class LoadGen:
    """See `arrivals.Arrivals`. What is asked is one request over and over, so there is no library of samples."""

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
