"""`stoker bench`: Stoker and its baselines in one run, as ratios.

The baselines: a bare uvicorn ASGI app that reads the body and answers a constant, the same as a Starlette
route, and a hand-written Starlette + orjson + ONNX Runtime service without batching, one worker each. Where a
request has many rows, the baseline is pysimdjson and ONNX Runtime alone in one process.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import InvalidSettings
from stoker_bench.benches.lineup import Lineup
from stoker_bench.contestants.baselines import HANDWRITTEN, bare_launch, handwritten_launch, starlette_launch
from stoker_bench.contestants.contest import Case
from stoker_bench.contestants.loaded_server import check_answers
from stoker_bench.contestants.offline import OfflineRuntime
from stoker_bench.contestants.other_stoker import OTHER, other_launch
from stoker_bench.contestants.servers import stoker_launch
from stoker_bench.contestants.start_up import frontend_weight, measure_start_up
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows, scoring_request
from stoker_bench.networks.served_model import ServedModel, given_model, seeded_model
from stoker_bench.progress import say
from stoker_bench.reports.bench_report import BenchReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker_bench.contestants.contest import Contestant
    from stoker_bench.contestants.loaded_server import LoadedServer

__all__ = ["BenchOptions", "run_bench"]

WARM_UP_S = 1
LARGE_REQUEST_CONNECTIONS = 4
"""Enough callers that a next large body is there while one is parsed and one is computed."""


@dataclass(frozen=True)
class BenchOptions:
    """What `stoker bench` was asked for; see its help texts."""

    uri: str | None = None
    key: str | None = None
    model: Path | None = None
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = (64, 48, 1)
    rows: int = 256
    frontends: int | None = None
    baselines: bool = True
    against: Path | None = None


class _Contest:
    """Everything that runs during one bench; `stack` ends it all."""

    def __init__(
        self,
        options: BenchOptions,
        key: str | None,
        model: ServedModel,
        folder: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self.generator = pick_generator()
        self.model = model
        self.lineup = Lineup(folder, stack, self.generator, model.row_shape)
        if options.uri:
            self.stoker = self.lineup.join("Stoker", options.uri, key)
        else:
            assert key is not None
            launch = stoker_launch(model.path, folder / "workspace", key, options.frontends)
            self.stoker = self.lineup.start(launch, metrics=True)
        self.others: list[LoadedServer] = []
        if options.against:
            launch = other_launch(options.against, model.path, folder, options.frontends)
            self.others = [self.lineup.start(launch)]
        self.baselines: list[LoadedServer] = []
        self.offline: list[OfflineRuntime] = []
        if options.baselines:
            launches = (bare_launch(), starlette_launch(), handwritten_launch(model.path))
            self.baselines = [self.lineup.start(launch) for launch in launches]
        if options.baselines and options.rows > 1:
            body = folder / "large-body"
            body.write_bytes(DATA_LISTS.encode(random_rows(options.rows, model.row_shape)))
            self.offline = [
                stack.enter_context(OfflineRuntime(model.path, threads, body)) for threads in (0, 1)
            ]

    def contestants(self, case: Case) -> list[Contestant]:
        """Return who takes turns in a case: the constants only where a request costs them as much as a row."""
        if case.rows == 1:
            return [self.stoker, *self.others, *self.baselines]
        scoring = [server for server in self.baselines if server.name == HANDWRITTEN]
        return [self.stoker, *self.others, *scoring, *self.offline]


def run_bench(options: BenchOptions) -> BenchReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: An option does not go with another one, a server does not start or answers wrongly, or a load
            generator fails.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        model = given_model(options.model) if options.model else seeded_model(folder)
        key, start_up = options.key, None
        if options.uri is not None:
            # A bad URI is refused before anything is started.
            scoring_request(options.uri, b"")
            if options.against:
                raise InvalidSettings("--against goes with a server that the bench starts: leave --uri out")
        if options.uri is None:
            key = secrets.token_urlsafe(32)
            say("start-up of stoker serve, beside importing onnxruntime")
            start_up = measure_start_up(model.path, key, options.frontends)
        contest = _Contest(options, key, model, folder, stack)
        _check(contest, options)
        cases = [
            contest.lineup.contest(contest.contestants(case), case, options.seconds, options.rounds)
            for case in _cases(options)
        ]
        tree = contest.stoker.tree
        return BenchReport(
            contest.generator.description,
            options.seconds,
            options.rounds,
            model.name,
            cases,
            start_up,
            weight_after_load=frontend_weight(tree) if tree else None,
        )


def _cases(options: BenchOptions) -> Iterator[Case]:
    for connections in options.concurrency:
        yield Case(connections)
    if options.rows > 1:
        yield Case(LARGE_REQUEST_CONNECTIONS, options.rows)


def _check(contest: _Contest, options: BenchOptions) -> None:
    """Check the answers of those that score, then warm all up."""
    say("checking answers")
    # What runs at a given URI need not be the bench's own model.
    known = options.uri is None or options.model is not None
    check_answers(contest.stoker, contest.model.row_shape, contest.model.outputs if known else None)
    for server in (*contest.others, *contest.baselines):
        if server.name in (OTHER, HANDWRITTEN):
            check_answers(server, contest.model.row_shape, contest.model.outputs)
    for server in (contest.stoker, *contest.others, *contest.baselines):
        server.run(Case(max(options.concurrency)), WARM_UP_S)
