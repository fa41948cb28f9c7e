"""`stoker bench --protocols`: the binary form of the Open Inference Protocol, compared with JSON at `/score`."""

from __future__ import annotations

from collections.abc import Iterator

from stoker_bench.benches.lineup import LARGE_REQUEST_CONNECTIONS, BenchOptions, Lineup
from stoker_bench.contestants.contest import Case, Contestant, standing
from stoker_bench.contestants.offline import RUNTIME, OfflineRuntime
from stoker_bench.generators.scoring_request import binary_open_inference
from stoker_bench.reports import Bound, CaseResult, Report, at_least, rows_per_s

BINARY, JSON_SCORE = "binary v2", "JSON /score"
INFER_PATH = "/v2/models/bench/infer"
CONNECTIONS = (64,)


def _case_bounds(result: CaseResult) -> Iterator[Bound]:
    at = f"at {result.case.title}"
    if result.case.rows == 1:
        text = f"requests/s of {result.first} over {JSON_SCORE} ≥ 1 {at}"
        yield from at_least(text, result.ratio(rows_per_s, JSON_SCORE), 1)
        return
    runtimes = [name for name in result.baselines if name.startswith(RUNTIME)]
    if runtimes:
        best = max(runtimes, key=lambda name: standing(result.slices[name]).rows_per_s)
        yield from at_least(
            f"rows/s of {result.first} over {best} ≥ 0.9 {at}", result.ratio(rows_per_s, best), 0.9
        )


def run_protocol_bench(options: BenchOptions) -> Report:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: The server does not start or answers wrongly, or a load generator fails.
    """
    connections = options.concurrency or CONNECTIONS
    with Lineup(options) as lineup:
        model = lineup.model
        score = lineup.start(lineup.launch(model.path), metrics=True)
        score.name = JSON_SCORE
        binary = score.speaking(BINARY, INFER_PATH, binary_open_inference(model.input_name))
        lineup.check([score, binary], model.outputs, connections)
        report = lineup.report(model.name, _case_bounds)
        report.cases += [lineup.contest([binary, score], Case(each)) for each in connections]
        if options.rows > 1:
            alone = (OfflineRuntime(model.path, threads, options.rows) for threads in (0, 1))
            contestants: list[Contestant] = [binary, score, *map(lineup.enter_context, alone)]
            report.cases.append(lineup.contest(contestants, Case(LARGE_REQUEST_CONNECTIONS, options.rows)))
        return report
