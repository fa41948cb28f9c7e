"""`stoker bench`: Stoker and its baselines in one run, as ratios.

The baselines: a bare uvicorn ASGI app that reads the body and answers a constant, the same as a Starlette
route, and a hand-written Starlette + orjson + ONNX Runtime service without batching, one worker each. Where a
request has many rows, the baseline is pysimdjson and ONNX Runtime alone in one process.
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.errors import InvalidSettings
from stoker_bench.benches.lineup import LARGE_REQUEST_CONNECTIONS, WARM_UP_S, BenchOptions, Lineup
from stoker_bench.contestants.baselines import (
    BARE,
    HANDWRITTEN,
    STARLETTE,
    bare_launch,
    handwritten_launch,
    starlette_launch,
)
from stoker_bench.contestants.contest import Case, Contestant, check_answers, standing
from stoker_bench.contestants.offline import NAME_PREFIX as OFFLINE
from stoker_bench.contestants.offline import OfflineRuntime
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.contestants.servers import RunningServer, stoker_launch
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows, scoring_request
from stoker_bench.reports import (
    MEGA,
    Bound,
    CaseResult,
    Report,
    at_least,
    at_most,
    cpu_us,
    p50_ms,
    rows_per_s,
    say,
)

CONNECTIONS = (64, 48, 1)


def run_bench(options: BenchOptions) -> BenchReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: An option does not go with another one, a server does not start or answers wrongly, or a load
            generator fails.
    """
    connections, start_up = options.concurrency or CONNECTIONS, None
    with Lineup(options) as lineup:
        model = lineup.model
        if options.uri is not None:
            # A bad URI is refused before anything is started.
            scoring_request(options.uri, b"")
            if options.against:
                raise InvalidSettings("--against goes with a server that the bench starts: leave --uri out")
            stoker = lineup.join("Stoker", options.uri, options.key)
        else:
            say("start-up of stoker serve, beside importing onnxruntime")
            start_up = measure_start_up(model.path, options.frontends)
            stoker = lineup.start(lineup.launch(model.path), metrics=True)
        others = [lineup.start(launch) for launch in lineup.launch_others(model.path)]
        launches = (bare_launch(), starlette_launch(), handwritten_launch(model.path))
        baselines = [lineup.start(launch) for launch in launches] if options.baselines else []
        # A request of many rows is nothing for those that answer a constant.
        scoring = [stoker, *others, *(server for server in baselines if server.name == HANDWRITTEN)]
        say("checking answers")
        for server in scoring:
            # A server at a given URI may run another model than the bench's own.
            known = server is not stoker or options.uri is None or options.model is not None
            check_answers(server, model.row_shape, model.outputs if known else None)
        for server in (stoker, *others, *baselines):
            server.run(Case(max(connections)), WARM_UP_S)
        report = lineup.report(BenchReport, model.name, start_up=start_up)
        for each in connections:
            report.cases.append(lineup.contest([stoker, *others, *baselines], Case(each)))
        if options.rows > 1:
            body = lineup.folder / "large-body"
            body.write_bytes(DATA_LISTS.encode(random_rows(options.rows, model.row_shape)))
            alone = [OfflineRuntime(model.path, threads, body) for threads in (0, 1) if options.baselines]
            contestants: list[Contestant] = [*scoring, *map(lineup.enter_context, alone)]
            report.cases.append(lineup.contest(contestants, Case(LARGE_REQUEST_CONNECTIONS, options.rows)))
        report.weight_after_load = frontend_weight(stoker.tree) if stoker.tree else None
        return report


@dataclass
class BenchReport(Report):
    """The results of a bench of a model."""

    start_up: StartUp | None = None
    weight_after_load: FrontendWeight | None = None

    def bounds(self) -> list[Bound]:
        """Return the bounds whose figures this run has."""
        found = [bound for result in self.cases for bound in _case_bounds(result)]
        if self.start_up:
            beyond_s = self.start_up.beyond_import_s
            found.append(
                Bound("seconds until ready beyond importing onnxruntime < 1.5", beyond_s, beyond_s < 1.5)
            )
        if self.weight_after_load:
            rss_mb = self.weight_after_load.rss_bytes / MEGA
            found.append(Bound("resident MB of a frontend after the load < 80", rss_mb, rss_mb < 80))
            frameworks = len(self.weight_after_load.frameworks)
            found.append(Bound("frameworks mapped by a frontend = 0", frameworks, frameworks == 0))
        return found

    def notes(self) -> list[str]:
        """Return the line about the start-up."""
        return [_start_up_line(self.start_up)] if self.start_up else []

    def further(self) -> dict[str, Any]:
        """Return start-up and weight."""
        return {
            "start_up": asdict(self.start_up) if self.start_up else None,
            "frontend_after_load": asdict(self.weight_after_load) if self.weight_after_load else None,
        }


def _start_up_line(start_up: StartUp) -> str:
    line = (
        f"Start-up: ready after {start_up.ready_s:.2f} s; importing onnxruntime takes "
        f"{start_up.import_s:.2f} s, so {start_up.beyond_import_s:.2f} s beyond it."
    )
    if weight := start_up.weight:
        line += (
            f"\nFrontends when ready: {weight.frontends}, at most {weight.rss_bytes / MEGA:.0f} MB resident "
            f"({weight.pss_bytes / MEGA:.0f} MB PSS) each."
        )
    return line


def _case_bounds(result: CaseResult) -> Iterator[Bound]:
    at = f"at {result.case.title}"
    if result.case.rows > 1:
        offline = next((name for name in result.baselines if name.startswith(OFFLINE)), "")
        yield from at_least(f"rows/s over {offline} ≥ 0.8 {at}", result.ratio(rows_per_s, offline), 0.8)
    elif result.case.connections == 1:
        yield from at_most(f"p50 over {BARE} ≤ 2 {at}", result.ratio(p50_ms, BARE), 2)
    else:
        for baseline, least in ((BARE, 0.9), (STARLETTE, 1.3), (HANDWRITTEN, 3)):
            measured = result.ratio(rows_per_s, baseline)
            yield from at_least(f"requests/s over {baseline} ≥ {least} {at}", measured, least)
        yield from at_most(f"CPU per request over {BARE} ≤ 1.1 {at}", result.ratio(cpu_us, BARE), 1.1)
        batch_rows = standing(result.slices[result.first]).mean_batch_rows
        if batch_rows is not None:
            yield Bound(f"mean batch > 4 {at}", batch_rows, batch_rows > 4)


FRONTEND_COMMAND = "stoker.gateway"
FRAMEWORKS = ("onnxruntime", "tensorflow")
REPEATS = 3


@dataclass(frozen=True)
class FrontendWeight:
    """The heaviest frontend process of a Stoker."""

    frontends: int
    rss_bytes: int
    pss_bytes: int
    frameworks: tuple[str, ...]
    """Frameworks whose libraries a frontend has mapped; there should be none."""


@dataclass(frozen=True)
class StartUp:
    """Medians over several starts, taken in turn with the import."""

    ready_s: float
    import_s: float
    """Wall time of `python -c "import onnxruntime"`."""
    weight: FrontendWeight | None
    """Taken as soon as the server is ready, before any load."""

    @property
    def beyond_import_s(self) -> float:
        """Seconds until ready that importing onnxruntime does not explain."""
        return self.ready_s - self.import_s


def frontend_weight(tree: ProcessTree) -> FrontendWeight | None:
    """Weigh the frontends of a running Stoker; None where the tree has none."""
    frontends = tree.named(FRONTEND_COMMAND)
    if not frontends:
        return None
    memories = [tree.memory_of(pid) for pid in frontends]
    mapped = {name for name in FRAMEWORKS for pid in frontends if tree.maps(pid, name)}
    return FrontendWeight(
        frontends=len(frontends),
        rss_bytes=max(memory.rss_bytes for memory in memories),
        pss_bytes=max(memory.pss_bytes for memory in memories),
        frameworks=tuple(sorted(mapped)),
    )


def measure_start_up(model: Path, frontends: int | None) -> StartUp:
    """Start and end Stoker several times on a free machine."""
    ready_s, import_s, weight = [], [], None
    for _ in range(REPEATS):
        import_s.append(_import_seconds())
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            key = secrets.token_urlsafe(32)
            launch = stoker_launch(model, Path(folder, "workspace"), key, frontends)
            with RunningServer(launch, Path(folder, "log")) as server:
                ready_s.append(server.start_s)
                weight = frontend_weight(server.tree)
    return StartUp(statistics.median(ready_s), statistics.median(import_s), weight)


def _import_seconds() -> float:
    started_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import onnxruntime"], check=True, capture_output=True)
    return time.perf_counter() - started_s
