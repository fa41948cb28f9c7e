"""`stoker bench --protocols`: what the other protocols of one server reach beside JSON at `/score`."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker_bench.benches.lineup import Lineup
from stoker_bench.contestants.contest import Case, standing
from stoker_bench.contestants.loaded_server import check_answers
from stoker_bench.contestants.offline import RUNTIME, OfflineRuntime
from stoker_bench.contestants.servers import stoker_launch
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.generators.scoring_request import binary_open_inference
from stoker_bench.networks.served_model import given_model, seeded_model
from stoker_bench.progress import say
from stoker_bench.reports.report import Report, at_least, rows_per_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker_bench.reports.report import Bound, CaseResult

__all__ = ["BINARY", "JSON_SCORE", "ProtocolBenchOptions", "ProtocolReport", "run_protocol_bench"]

BINARY, JSON_SCORE = "binary v2", "JSON /score"
INFER_PATH = "/v2/models/bench/infer"
WARM_UP_S = 1
LARGE_REQUEST_CONNECTIONS = 4


@dataclass(frozen=True)
class ProtocolBenchOptions:
    """What `stoker bench --protocols` was asked for; see its help texts."""

    model: Path | None = None
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = (64,)
    rows: int = 256
    frontends: int | None = None


@dataclass
class ProtocolReport(Report):
    """What a bench of protocols found."""

    def bounds(self) -> list[Bound]:
        """Return the bounds whose figures this run has."""
        return [bound for result in self.cases for bound in _case_bounds(result)]


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


def run_protocol_bench(options: ProtocolBenchOptions) -> ProtocolReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: The server does not start or answers wrongly, or a load generator fails.
    """
    generator = pick_generator()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        model = given_model(options.model) if options.model else seeded_model(folder)
        report = ProtocolReport(generator.description, options.seconds, options.rounds, model.name)
        lineup = Lineup(folder, stack, generator, model.row_shape)
        key = secrets.token_urlsafe(32)
        launch = stoker_launch(model.path, folder / "workspace", key, options.frontends)
        score = lineup.start(launch, metrics=True)
        score.name = JSON_SCORE
        binary = score.speaking(BINARY, INFER_PATH, binary_open_inference(model.input_name))
        say("checking answers")
        for server in (score, binary):
            check_answers(server, model.row_shape, model.outputs)
            server.run(Case(max(options.concurrency)), WARM_UP_S)
        for connections in options.concurrency:
            case = Case(connections)
            report.cases.append(lineup.contest([binary, score], case, options.seconds, options.rounds))
        if options.rows > 1:
            runtimes = [
                stack.enter_context(OfflineRuntime(model.path, threads, options.rows)) for threads in (0, 1)
            ]
            large = Case(LARGE_REQUEST_CONNECTIONS, options.rows)
            report.cases.append(
                lineup.contest([binary, score, *runtimes], large, options.seconds, options.rounds)
            )
        return report
