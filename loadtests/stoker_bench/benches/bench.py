"""`stoker bench`: Stoker and its baselines in one run, as ratios.

The baselines: a bare uvicorn ASGI app that reads the body and answers a constant, the same as a Starlette
route, and a hand-written Starlette + orjson + ONNX Runtime service without batching, one worker each. Where a
request has many rows, the baseline is pysimdjson and ONNX Runtime alone in one process.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def run_bench(options: BenchOptions) -> Report:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: An option does not go with another one, a server does not start or answers wrongly, or a load
            generator fails.
    """
    connections = options.concurrency or CONNECTIONS
    with Lineup(options) as lineup:
        model = lineup.model
        if options.uri is not None:
            # A bad URI is refused before anything is started.
            scoring_request(options.uri, b"")
            if options.against:
                raise InvalidSettings("--against goes with a server that the bench starts: leave --uri out")
            stoker = lineup.join("Stoker", options.uri, options.key)
        else:
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
        report = lineup.report(model.name, _case_bounds)
        for each in connections:
            report.cases.append(lineup.contest([stoker, *others, *baselines], Case(each)))
        if options.rows > 1:
            body = lineup.folder / "large-body"
            body.write_bytes(DATA_LISTS.encode(random_rows(options.rows, model.row_shape)))
            alone = [OfflineRuntime(model.path, threads, body) for threads in (0, 1) if options.baselines]
            contestants: list[Contestant] = [*scoring, *map(lineup.enter_context, alone)]
            report.cases.append(lineup.contest(contestants, Case(LARGE_REQUEST_CONNECTIONS, options.rows)))
        report.further_bounds += weight_bounds(stoker.tree) if stoker.tree else ()
        return report


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


def weight_bounds(tree: ProcessTree) -> Iterator[Bound]:
    """Weigh the frontends of a running Stoker."""
    frontends = tree.named(FRONTEND_COMMAND)
    if frontends:
        rss_mb = max(tree.memory_of(pid).rss_bytes for pid in frontends) / MEGA
        yield Bound("resident MB of a frontend after the load < 80", rss_mb, rss_mb < 80)
        mapped = sum(any(tree.maps(pid, name) for pid in frontends) for name in FRAMEWORKS)
        yield Bound("frameworks mapped by a frontend = 0", mapped, mapped == 0)
