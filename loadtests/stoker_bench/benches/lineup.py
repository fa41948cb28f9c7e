"""Parts of all benches: options, and the servers that a bench starts, loads in turns and ends."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from stoker_bench.contestants.contest import (
    Case,
    Contestant,
    LoadedServer,
    Slice,
    check_answers,
    run_in_turns,
)
from stoker_bench.contestants.process_tree import tree_behind
from stoker_bench.contestants.servers import Launch, RunningServer, other_launch, stoker_launch
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import DATA_LISTS, Dialect, random_rows
from stoker_bench.networks.served_model import ServedModel, given_model, seeded_model
from stoker_bench.reports import Bound, CaseResult, Report, no_bounds, say

METRICS_PATH = "/metrics"
WARM_UP_S = 1
LARGE_REQUEST_CONNECTIONS = 4
"""Enough callers that a next large body is there while one is parsed and one is computed."""


@dataclass(frozen=True)
class BenchOptions:
    """Options of `stoker bench`; see its help. Where no connections are given, each bench has its own."""

    uri: str | None = None
    key: str | None = None
    model: Path | None = None
    run_folder: Path | None = None
    script: Path | None = None
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = ()
    rows: int = 256
    frontends: int | None = None
    baselines: bool = True
    against: Path | None = None


class Lineup(contextlib.ExitStack):
    """Starts servers and lets them take their turns; when it is left, they and their folder are gone.

    Args:
        generator: By default the best one for HTTP that is installed.
        row_shape: The shape of the rows in requests; by default that of the model.
    """

    def __init__(
        self,
        options: BenchOptions,
        generator: OwnGenerator | None = None,
        row_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.options = options
        self.generator = generator or OwnGenerator()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="stoker-bench-")))
        self._row_shape = row_shape

    @cached_property
    def model(self) -> ServedModel:
        """The model of the options, or the bench's own."""
        return given_model(self.options.model) if self.options.model else seeded_model(self.folder)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of the rows in requests."""
        return self.model.row_shape if self._row_shape is None else self._row_shape

    def launch(self, model: Path, options: Sequence[str] = ()) -> Launch:
        """Return how to start the Stoker of this environment with a model."""
        workspace, key = self.folder / "workspace", secrets.token_urlsafe(32)
        return stoker_launch(model, workspace, key, self.options.frontends, options=options)

    def launch_others(self, model: Path, options: Sequence[str] = ()) -> list[Launch]:
        """Return how to start the Stoker of the environment that the options name, if they do."""
        python, frontends = self.options.against, self.options.frontends
        return [] if python is None else [other_launch(python, model, self.folder, frontends, options)]

    def start(
        self,
        launch: Launch,
        dialect: Dialect = DATA_LISTS,
        *,
        metrics: bool = False,
        ready_when_it_scores: bool = False,
    ) -> LoadedServer:
        """Start a server and wait until it is ready, by its own word or when it answers a row."""
        say(f"starting {launch.name}")
        log = self.folder / f"{launch.name.replace(' ', '-')}.log"
        body = dialect.encode(random_rows(1, self.row_shape)) if ready_when_it_scores else None
        tree = self.enter_context(RunningServer(launch, log, body)).tree
        path = METRICS_PATH if metrics else None
        name, uri, key = launch.name, launch.uri, launch.key
        return LoadedServer(
            name, uri, self.generator, dialect, self.row_shape, tree=tree, key=key, metrics_path=path
        )

    def join(self, name: str, uri: str, key: str | None) -> LoadedServer:
        """Take in a Stoker that runs already."""
        tree, path = tree_behind(uri), METRICS_PATH
        return LoadedServer(
            name, uri, self.generator, DATA_LISTS, self.row_shape, tree=tree, key=key, metrics_path=path
        )

    def check(
        self,
        servers: Iterable[LoadedServer],
        expected: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        connections: Sequence[int],
        max_rows: int = 3,
    ) -> None:
        """Check the answers of servers, then warm them up."""
        say("checking answers")
        for server in servers:
            check_answers(server, self.row_shape, expected, max_rows)
            server.run(Case(max(connections)), WARM_UP_S)

    def contest(
        self, contestants: Sequence[Contestant], case: Case, subject: str = "", yardstick: str = ""
    ) -> CaseResult:
        """Let contestants take turns in a case; see `CaseResult` for what is compared."""
        say(f"{subject}: {case.title}" if subject else case.title)
        total = len(contestants) * self.options.rounds
        with tqdm(total=total, disable=None, leave=False, unit="slice", file=sys.stderr) as bar:

            def on_slice(name: str, taken: Slice) -> None:
                bar.set_postfix_str(f"{name} {taken.requests_per_s:,.0f}/s")
                bar.update()

            slices = run_in_turns(contestants, case, self.options.seconds, self.options.rounds, on_slice)
        servers = [contestant for contestant in contestants if isinstance(contestant, LoadedServer)]
        rows = random_rows(case.rows, self.row_shape)
        return CaseResult(
            case,
            tuple(dict.fromkeys(len(server.request(rows).body) for server in servers)),
            slices,
            {server.name: server.tree.memory().pss_bytes for server in servers if server.tree},
            subject,
            yardstick,
        )

    def report(self, subject: str, bounds_of: Callable[[CaseResult], Iterable[Bound]] = no_bounds) -> Report:
        """Return a report without cases."""
        options = self.options
        return Report(self.generator.description, options.seconds, options.rounds, subject, bounds_of)
