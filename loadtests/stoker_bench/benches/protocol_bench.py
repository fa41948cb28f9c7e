"""`stoker bench --protocols`, `--images` and `--tokens`: requests other than rows of numbers in JSON.

The other protocols of one server are compared with JSON at `/score`. Images and tokens are compared with one process
that does the least for them: decode the body and run the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker_bench.benches.lineup import LARGE_REQUEST_CONNECTIONS, BenchOptions, Lineup
from stoker_bench.contestants.contest import Case, Contestant, standing
from stoker_bench.contestants.offline import RUNTIME, OfflineRuntime
from stoker_bench.contestants.servers import OTHER
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


_IMAGES: Final = Dialect(jpeg, DATA_LISTS.decode, lambda _: {"Content-Type": "image/jpeg"})
_TOKENS: Final = Dialect(tokens_json, DATA_LISTS.decode)


class _Kind(NamedTuple):
    """The subject of a bench.

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


_IMAGE_KIND: Final = _Kind(
    "means of the channels of JPEGs of 224 × 224",
    write_averages, IMAGE_SHAPE, _IMAGES, averages, ("--image", "size=224x224"), (16,), 0.5,
)  # fmt: skip
_TOKEN_KIND: Final = _Kind(
    "sums of 128 token ids and their mask, sizes free",
    write_sums, TOKEN_SHAPE, _TOKENS, sums, (), (64, 1), None,
)  # fmt: skip


def _keeps_up(result: CaseResult, least: float | None) -> Iterator[Bound]:
    """Yield the bound beside the best of the processes that read and run bodies alone, if there is one."""
    if least is not None:
        alone = (name for name in result.baselines if name != OTHER)
        best = max(alone, key=lambda name: standing(result.slices[name]).rows_per_s)
        text = f"requests/s of {result.first} over {best} ≥ {least} at {result.case.title}"
        yield from at_least(text, result.ratio(rows_per_s, best), least)


def run_image_bench(options: BenchOptions) -> Report:
    """Bench JPEGs."""
    return _run_body_bench(_IMAGE_KIND, "images", options)


def run_token_bench(options: BenchOptions) -> Report:
    """Bench token ids."""
    return _run_body_bench(_TOKEN_KIND, "tokens", options)


def _run_body_bench(kind: _Kind, bodies: Literal["images", "tokens"], options: BenchOptions) -> Report:
    connections = options.concurrency or kind.connections
    with Lineup(options, row_shape=kind.row_shape) as lineup:
        model, body = lineup.folder / "model.onnx", lineup.folder / "body"
        model.write_bytes(kind.write())
        body.write_bytes(kind.dialect.encode(random_rows(1, kind.row_shape)))
        servers = [lineup.start(lineup.launch(model, kind.options), kind.dialect, metrics=True)]
        servers += [lineup.start(other, kind.dialect) for other in lineup.launch_others(model, kind.options)]
        lineup.check(servers, kind.outputs, connections, max_rows=1)
        alone = lineup.enter_context(OfflineRuntime(model, 1, body, bodies))
        report = lineup.report(kind.model, partial(_keeps_up, least=kind.least))
        report.cases += [lineup.contest([*servers, alone], Case(each)) for each in connections]
        return report
