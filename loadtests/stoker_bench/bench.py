"""`stoker bench`: Stoker and its baselines in one run, as ratios.

The baselines: a bare uvicorn ASGI app that reads the body and answers a constant, the same as a Starlette
route, and a hand-written Starlette + orjson + ONNX Runtime service without batching, one worker each. Where a
request has many rows, the baseline is pysimdjson and ONNX Runtime alone in one process.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from stoker_bench.baselines import HANDWRITTEN, bare_launch, handwritten_launch, starlette_launch
from stoker_bench.bench_report import BenchReport, CaseResult
from stoker_bench.contest import Case, run_in_turns
from stoker_bench.load_generator import pick_generator
from stoker_bench.loaded_server import LoadedServer, check_answers
from stoker_bench.mlp import WIDTHS, seeded_mlp
from stoker_bench.offline import OfflineRuntime
from stoker_bench.scoring_request import DATA_LISTS, random_rows, scoring_request
from stoker_bench.servers import (
    BenchedServerError,
    RunningServer,
    stoker_launch,
    tree_behind,
)
from stoker_bench.start_up import frontend_weight, measure_start_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from stoker_bench.contest import Contestant, Slice
    from stoker_bench.process_tree import ProcessTree
    from stoker_bench.servers import Launch

__all__ = ["BenchOptions", "run_bench"]

METRICS_PATH = "/metrics"
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


@dataclass(frozen=True)
class _Model:
    path: Path
    row_shape: tuple[int, ...]
    outputs: Callable[[NDArray[np.float32]], NDArray[np.float32]]


class _Contest:
    """Everything that runs during one bench; `stack` ends it all."""

    def __init__(
        self, options: BenchOptions, key: str | None, model: _Model, folder: Path, stack: contextlib.ExitStack
    ) -> None:
        self.generator = pick_generator()
        self.model = model
        self._folder = folder
        self._stack = stack
        self.stoker = self._running(options.uri, key) if options.uri else self._own(options, key)
        self.baselines: list[LoadedServer] = []
        self.offline: list[OfflineRuntime] = []
        if options.baselines:
            launches = (bare_launch(), starlette_launch(), handwritten_launch(model.path))
            self.baselines = [self._started(launch) for launch in launches]
        if options.baselines and options.rows > 1:
            body = folder / "large-body"
            body.write_bytes(DATA_LISTS.encode(random_rows(options.rows, model.row_shape)))
            self.offline = [
                stack.enter_context(OfflineRuntime(model.path, body, threads)) for threads in (0, 1)
            ]

    def contestants(self, case: Case) -> list[Contestant]:
        """Return who takes turns in a case: the constants only where a request costs them as much as a row."""
        if case.rows == 1:
            return [self.stoker, *self.baselines]
        scoring = [server for server in self.baselines if server.name == HANDWRITTEN]
        return [self.stoker, *scoring, *self.offline]

    def _running(self, uri: str, key: str | None) -> LoadedServer:
        return self._loaded("Stoker", uri, tree_behind(uri), key, METRICS_PATH)

    def _own(self, options: BenchOptions, key: str | None) -> LoadedServer:
        assert key is not None
        launch = stoker_launch(self.model.path, self._folder / "workspace", key, options.frontends)
        return self._started(launch, METRICS_PATH)

    def _started(self, launch: Launch, metrics_path: str | None = None) -> LoadedServer:
        _say(f"starting {launch.name}")
        log = self._folder / f"{launch.name.replace(' ', '-')}.log"
        server = self._stack.enter_context(RunningServer(launch, log))
        return self._loaded(launch.name, launch.uri, server.tree, launch.key, metrics_path)

    def _loaded(
        self, name: str, uri: str, tree: ProcessTree | None, key: str | None, metrics_path: str | None
    ) -> LoadedServer:
        return LoadedServer(
            name,
            uri,
            self.generator,
            DATA_LISTS,
            self.model.row_shape,
            tree=tree,
            key=key,
            metrics_path=metrics_path,
        )


def run_bench(options: BenchOptions) -> BenchReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: If a server does not start, answers wrongly, or a load generator fails.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        model = _model(options.model, folder)
        key, start_up = options.key, None
        if options.uri is not None:
            # A bad URI is refused before anything is started.
            scoring_request(options.uri, b"")
        if options.uri is None:
            key = secrets.token_urlsafe(32)
            _say("start-up of stoker serve, beside importing onnxruntime")
            start_up = measure_start_up(model.path, key, options.frontends)
        contest = _Contest(options, key, model, folder, stack)
        _check(contest, options)
        cases = [_run_case(contest, case, options) for case in _cases(options)]
        tree = contest.stoker.tree
        return BenchReport(
            contest.generator.description,
            options.seconds,
            options.rounds,
            options.model,
            start_up,
            cases,
            weight_after_load=frontend_weight(tree) if tree else None,
        )


def _cases(options: BenchOptions) -> Iterator[Case]:
    for connections in options.concurrency:
        yield Case(connections)
    if options.rows > 1:
        yield Case(LARGE_REQUEST_CONNECTIONS, options.rows)


def _model(path: Path | None, folder: Path) -> _Model:
    if path is None:
        mlp = seeded_mlp()
        made = folder / "mlp.onnx"
        mlp.save(made)
        return _Model(made, (WIDTHS[0],), mlp.logits)
    return _given_model(path)


def _given_model(path: Path) -> _Model:
    import onnxruntime

    if not path.is_file():
        raise BenchedServerError(f"there is no model file {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tensor, *others = session.get_inputs()
    shape = tensor.shape[1:]
    if others or tensor.type != "tensor(float)" or not all(isinstance(size, int) for size in shape):
        raise BenchedServerError(
            f"{path} cannot be benched: a model with one float32 input of fixed row shape is needed, "
            f"this one takes {[(each.name, each.type, each.shape) for each in (tensor, *others)]}"
        )

    def outputs(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        first: NDArray[np.float32] = session.run(None, {tensor.name: rows})[0]
        return first.reshape(len(rows), -1)

    return _Model(path, tuple(shape), outputs)


def _check(contest: _Contest, options: BenchOptions) -> None:
    """Check the answers of those that score, then warm all up."""
    _say("checking answers")
    # What runs at a given URI need not be the bench's own model.
    known = options.uri is None or options.model is not None
    check_answers(contest.stoker, contest.model.row_shape, contest.model.outputs if known else None)
    for server in contest.baselines:
        if server.name == HANDWRITTEN:
            check_answers(server, contest.model.row_shape, contest.model.outputs)
    for server in (contest.stoker, *contest.baselines):
        server.run(Case(max(options.concurrency)), WARM_UP_S)


def _run_case(contest: _Contest, case: Case, options: BenchOptions) -> CaseResult:
    contestants = contest.contestants(case)
    _say(case.title)
    with tqdm(
        total=len(contestants) * options.rounds, disable=None, leave=False, unit="slice", file=sys.stderr
    ) as bar:

        def on_slice(name: str, taken: Slice) -> None:
            bar.set_postfix_str(f"{name} {taken.requests_per_s:,.0f}/s")
            bar.update()

        slices = run_in_turns(contestants, case, options.seconds, options.rounds, on_slice)
    pss_bytes = {}
    for contestant in contestants:
        if isinstance(contestant, LoadedServer) and contestant.tree:
            pss_bytes[contestant.name] = contestant.tree.memory().pss_bytes
    body_bytes = len(DATA_LISTS.encode(random_rows(case.rows, contest.model.row_shape)))
    return CaseResult(case, body_bytes, slices, pss_bytes)


def _say(what: str) -> None:
    print(f"bench: {what} …", file=sys.stderr, flush=True)
