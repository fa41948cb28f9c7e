"""`stoker bench --grpc`: unary calls of the Open Inference Protocol, beside a bare grpc.aio server's echo of them."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
import orjson

from stoker.gateway.grpc.messages import SERVICE, ModelInferRequest, ModelInferResponse
from stoker_bench.benches.lineup import Lineup
from stoker_bench.contestants.contest import Case
from stoker_bench.contestants.servers import HOST, Launch, free_port, stoker_launch
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import LoadFigures, output_of
from stoker_bench.generators.scoring_request import Dialect, random_rows
from stoker_bench.networks.served_model import given_model, seeded_model
from stoker_bench.progress import say
from stoker_bench.reports.report import Report, at_least, rows_per_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stoker_bench.contestants.loaded_server import LoadedServer
    from stoker_bench.generators.scoring_request import ScoringRequest
    from stoker_bench.networks.served_model import ServedModel
    from stoker_bench.reports.report import Bound, CaseResult

__all__ = ["ECHO", "GRPC", "GrpcBenchOptions", "GrpcReport", "echo_launch", "run_grpc_bench"]

GRPC, ECHO = "gRPC", "bare grpc.aio echo"
PATH = f"/{SERVICE}/ModelInfer"
WARM_UP_S = 1
LEAST_OF_ECHO = 0.8
TOLERANCE = 1e-3
CALL_TIMEOUT_S = 30


@dataclass(frozen=True)
class GrpcBenchOptions:
    """What `stoker bench --grpc` was asked for; see its help texts."""

    model: Path | None = None
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = (64,)
    frontends: int = 1


@dataclass
class GrpcReport(Report):
    """What a bench of gRPC found."""

    def bounds(self) -> list[Bound]:
        """Return the bounds whose figures this run has."""
        return [bound for result in self.cases for bound in _case_bounds(result)]


def _case_bounds(result: CaseResult) -> Iterator[Bound]:
    text = f"requests/s of {result.first} over {ECHO} ≥ {LEAST_OF_ECHO} at {result.title}"
    yield from at_least(text, result.ratio(rows_per_s, ECHO), LEAST_OF_ECHO)


class _Generator:
    """The generator of `stoker_bench.generators.grpc_loop` in a process of its own."""

    description = "the bench's own generator for gRPC (uvloop, one process)"

    def run(self, request: ScoringRequest, connections: int, seconds: int) -> LoadFigures:
        """See LoadGenerator.run."""
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            message, headers = Path(folder, "message"), Path(folder, "headers")
            message.write_bytes(request.body)
            headers.write_bytes(orjson.dumps(request.headers))
            command = [sys.executable, "-m", "stoker_bench.generators.grpc_loop", "--host", request.host]
            command += ["--port", str(request.port), "--path", request.path, "--message", str(message)]
            command += ["--headers", str(headers), "--connections", str(connections)]
            output = output_of([*command, "--seconds", str(seconds)], seconds)
        return LoadFigures(**orjson.loads(output))


def _dialect(input_name: str) -> Dialect:
    def encode(rows: NDArray[np.float32]) -> bytes:
        request = ModelInferRequest(model_name="bench", raw_input_contents=[rows.astype("<f4").tobytes()])
        request.inputs.add(name=input_name, datatype="FP32", shape=rows.shape)
        message: bytes = request.SerializeToString()
        return message

    def decode(body: bytes, rows: int) -> NDArray[np.float64]:
        (content,) = ModelInferResponse.FromString(body).raw_output_contents
        return np.frombuffer(content, "<f4").astype(np.float64).reshape(rows, -1)

    return Dialect(encode, decode, lambda _: {})


def echo_launch() -> Launch:
    """Start the bare echo."""
    port = free_port()
    command = (
        sys.executable,
        "-m",
        "stoker_bench.contestants.baselines.grpc_echo",
        "--address",
        f"{HOST}:{port}",
    )
    return Launch(ECHO, command, port, ready_path="", score_path=PATH)


def run_grpc_bench(options: GrpcBenchOptions) -> GrpcReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: A server does not start or answers wrongly, or the load generator fails.
    """
    generator = _Generator()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        model = given_model(options.model) if options.model else seeded_model(folder)
        report = GrpcReport(generator.description, options.seconds, options.rounds, model.name)
        lineup = Lineup(folder, stack, generator, model.row_shape)
        dialect = _dialect(model.input_name)
        echo = lineup.start(echo_launch(), dialect)
        port = free_port()
        launch = stoker_launch(
            model.path,
            folder / "workspace",
            secrets.token_urlsafe(32),
            options.frontends,
            options=["--grpc-port", str(port)],
        )
        scoring = lineup.start(launch).speaking(GRPC, f"http://{HOST}:{port}{PATH}", dialect)
        _check(scoring, echo, model)
        for server in (scoring, echo):
            server.run(Case(max(options.concurrency)), WARM_UP_S)
        for connections in options.concurrency:
            case = Case(connections)
            report.cases.append(lineup.contest([scoring, echo], case, options.seconds, options.rounds))
        return report


def _check(scoring: LoadedServer, echo: LoadedServer, model: ServedModel) -> None:
    """Compare one answer of each with what it must be."""
    say("checking answers")
    rows = random_rows(3, model.row_shape)
    outputs = scoring.dialect.decode(_call(scoring, rows), len(rows))
    wanted = model.outputs(rows)
    if outputs.shape != wanted.shape or np.abs(outputs - wanted).max() > TOLERANCE:
        raise BenchedServerError(f"{scoring.name} answered {outputs[0][:4]} …, not {wanted[0][:4]} …")
    if _call(echo, rows) != echo.request(rows).body:
        raise BenchedServerError(f"{echo.name} answered with something else than the request")


def _call(server: LoadedServer, rows: NDArray[np.float32]) -> bytes:
    request = server.request(rows)
    metadata = [(name.lower(), value) for name, value in request.headers.items()]
    with grpc.insecure_channel(f"{request.host}:{request.port}") as channel:
        try:
            answer: bytes = channel.unary_unary(request.path)(
                request.body, metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise BenchedServerError(f"{server.name} answered {error}") from error
    return answer
