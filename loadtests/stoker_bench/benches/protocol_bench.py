"""`stoker bench --protocols`, `--images` and `--tokens`: requests other than rows of numbers in JSON.

The other protocols of one server are compared with JSON at `/score`. Images and tokens are compared with one process
that does the least for them: decode the body and run the model.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker_bench.benches.lineup import Lineup
from stoker_bench.contestants.contest import Case, check_answers, standing
from stoker_bench.contestants.offline import RUNTIME, OfflineRuntime
from stoker_bench.contestants.servers import OTHER, other_launch, stoker_launch
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.generators.scoring_request import DATA_LISTS, Dialect, binary_open_inference, random_rows
from stoker_bench.networks.onnx_graphs import (
    IMAGE_SHAPE,
    TOKEN_SHAPE,
    averages,
    jpeg,
    sums,
    tokens_json,
    write_averages,
    write_sums,
)
from stoker_bench.networks.served_model import given_model, seeded_model
from stoker_bench.reports import Bound, CaseResult, Report, at_least, rows_per_s, say

BINARY, JSON_SCORE = "binary v2", "JSON /score"
INFER_PATH = "/v2/models/bench/infer"
WARM_UP_S = 1
LARGE_REQUEST_CONNECTIONS = 4


@dataclass(frozen=True)
class ProtocolBenchOptions:
    """Options of `stoker bench --protocols`; see its help."""

    model: Path | None = None
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = (64,)
    rows: int = 256
    frontends: int | None = None


@dataclass
class ProtocolReport(Report):
    """The results of a bench of protocols."""

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


_IMAGES: Final = Dialect(jpeg, DATA_LISTS.decode, lambda _: {"Content-Type": "image/jpeg"})
_TOKENS: Final = Dialect(tokens_json, DATA_LISTS.decode)


class _Kind(NamedTuple):
    """What is benched.

    Attributes:
        write: Makes the ONNX file.
        row_shape: The shape of the random rows in requests.
        dialect: Makes a request of a row.
        outputs: The model's answers to rows [n, *row_shape].
        options: Options of `stoker serve`.
        connections: One case each.
        least: The least share of one process's throughput without the server; None where HTTP costs more.
    """

    model: str
    write: Callable[[], bytes]
    row_shape: tuple[int, ...]
    dialect: Dialect
    outputs: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    options: tuple[str, ...]
    connections: tuple[int, ...]
    least: float | None


_KINDS: Final = {
    "images": _Kind(
        "means of the channels of JPEGs of 224 × 224",
        write_averages, IMAGE_SHAPE, _IMAGES, averages, ("--image", "size=224x224"), (16,), 0.5,
    ),
    "tokens": _Kind(
        "sums of 128 token ids and their mask, sizes free",
        write_sums, TOKEN_SHAPE, _TOKENS, sums, (), (64, 1), None,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class BodyBenchOptions:
    """Options of `stoker bench --images` or `--tokens`; see its help."""

    bodies: Literal["images", "tokens"]
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = ()
    frontends: int | None = None
    against: Path | None = None


@dataclass
class BodyReport(Report):
    """The results of a bench of other bodies.

    Attributes:
        least: See `_Kind`.
    """

    least: float | None = None

    def bounds(self) -> list[Bound]:
        """Return the bounds whose figures this run has."""
        return [bound for result in self.cases for bound in self._case_bounds(result)]

    def _case_bounds(self, result: CaseResult) -> Iterator[Bound]:
        if self.least is None:
            return
        alone = (name for name in result.baselines if name != OTHER)
        best = max(alone, key=lambda name: standing(result.slices[name]).rows_per_s)
        text = f"requests/s of {result.first} over {best} ≥ {self.least} at {result.case.title}"
        yield from at_least(text, result.ratio(rows_per_s, best), self.least)


def run_body_bench(options: BodyBenchOptions) -> BodyReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: The server does not start or answers wrongly, or a load generator fails.
    """
    kind, generator = _KINDS[options.bodies], pick_generator()
    connections = options.concurrency or kind.connections
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        model, body = folder / "model.onnx", folder / "body"
        model.write_bytes(kind.write())
        body.write_bytes(kind.dialect.encode(random_rows(1, kind.row_shape)))
        report = BodyReport(
            generator.description, options.seconds, options.rounds, kind.model, least=kind.least
        )
        lineup = Lineup(folder, stack, generator, kind.row_shape)
        launch = stoker_launch(
            model,
            folder / "workspace",
            secrets.token_urlsafe(32),
            options.frontends,
            options=kind.options,
        )
        stoker = lineup.start(launch, kind.dialect, metrics=True)
        servers = [stoker]
        if options.against:
            other = other_launch(options.against, model, folder, options.frontends, kind.options)
            servers.append(lineup.start(other, kind.dialect))
        say("checking answers")
        for server in servers:
            check_answers(server, kind.row_shape, kind.outputs, max_rows=1)
            server.run(Case(max(connections)), WARM_UP_S)
        alone = stack.enter_context(OfflineRuntime(model, 1, body, options.bodies))
        for each in connections:
            case = Case(each)
            report.cases.append(lineup.contest([*servers, alone], case, options.seconds, options.rounds))
        return report
