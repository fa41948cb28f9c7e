"""`stoker bench --grpc`: unary calls of the Open Inference Protocol, compared with bare echoes in Python and C++."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import grpc
import numpy as np
from numpy.typing import NDArray

from stoker.gateway.grpc.messages import SERVICE, ModelInferRequest, ModelInferResponse
from stoker_bench.benches.lineup import WARM_UP_S, BenchOptions, Lineup
from stoker_bench.contestants.contest import Case, LoadedServer
from stoker_bench.contestants.servers import HOST, OTHER, Launch, free_port
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import Dialect, ScoringRequest, random_rows
from stoker_bench.networks.served_model import ServedModel
from stoker_bench.reports import Bound, CaseResult, Report, at_least, at_most, p50_ms, rows_per_s, say

GRPC, ECHO, CPP_ECHO = "gRPC", "bare grpc.aio echo", "bare C++ echo"
PATH = f"/{SERVICE}/ModelInfer"
CONNECTIONS = (64, 1)
LEAST_OF_ECHO = 0.8
LEAST_OF_CPP_ECHO, MOST_OF_CPP_ECHO_P50 = 0.6, 1.3
TOLERANCE = 1e-3


def _case_bounds(result: CaseResult) -> Iterator[Bound]:
    first, at = result.first, f"at {result.title}"
    text = f"requests/s of {first} over {ECHO} ≥ {LEAST_OF_ECHO} {at}"
    yield from at_least(text, result.ratio(rows_per_s, ECHO), LEAST_OF_ECHO)
    if result.case.connections == 1:
        text = f"p50 of {first} over {CPP_ECHO} ≤ {MOST_OF_CPP_ECHO_P50} {at}"
        yield from at_most(text, result.ratio(p50_ms, CPP_ECHO), MOST_OF_CPP_ECHO_P50)
    else:
        text = f"requests/s of {first} over {CPP_ECHO} ≥ {LEAST_OF_CPP_ECHO} {at}"
        yield from at_least(text, result.ratio(rows_per_s, CPP_ECHO), LEAST_OF_CPP_ECHO)


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
    """Start the bare echo of grpc.aio."""
    port = free_port()
    module = "stoker_bench.contestants.baselines.grpc_echo"
    command = (sys.executable, "-m", module, "--address", f"{HOST}:{port}")
    return Launch(ECHO, command, port, ready_path="", score_path=PATH)


def run_grpc_bench(options: BenchOptions) -> Report:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: A server does not start or answers wrongly, or the load generator fails.
    """
    connections = options.concurrency or CONNECTIONS
    options = dataclasses.replace(options, frontends=options.frontends or 1)
    with Lineup(options, OwnGenerator(grpc=True)) as lineup:
        model = lineup.model
        dialect = _dialect(model.input_name)
        launches, left_out = _echo_launches(lineup.folder)
        echoes = [lineup.start(launch, dialect) for launch in launches]
        own, other = free_port(), free_port()
        scoring = [(GRPC, own, lineup.launch(model.path, ["--grpc-port", str(own)]))]
        others = lineup.launch_others(model.path, ["--grpc-port", str(other)])
        scoring += [(OTHER, other, launch) for launch in others]
        servers = [
            lineup.start(launch).speaking(name, f"http://{HOST}:{port}{PATH}", dialect)
            for name, port, launch in scoring
        ]
        _check(servers, echoes, model)
        for server in (*servers, *echoes):
            server.run(Case(max(connections)), WARM_UP_S)
        report = lineup.report(model.name, _case_bounds)
        report.notes += left_out
        report.cases += [lineup.contest([*servers, *echoes], Case(each)) for each in connections]
        return report


def _echo_launches(folder: Path) -> tuple[list[Launch], list[str]]:
    """Return how to start the echoes that this machine has, and why others are left out."""
    say(f"building the {CPP_ECHO}")
    try:
        return [echo_launch(), cpp_echo_launch(PATH, folder)], []
    except EchoNotBuilt as error:
        return [echo_launch()], [f"The {CPP_ECHO} is left out: {error}."]


def _check(scoring: Sequence[LoadedServer], echoes: Sequence[LoadedServer], model: ServedModel) -> None:
    """Check one answer of each contestant."""
    say("checking answers")
    rows = random_rows(3, model.row_shape)
    wanted = model.outputs(rows)
    for server in scoring:
        outputs = server.dialect.decode(answer_to(server.request(rows)), len(rows))
        if outputs.shape != wanted.shape or np.abs(outputs - wanted).max() > TOLERANCE:
            raise BenchedServerError(f"{server.name} answered {outputs[0][:4]} …, not {wanted[0][:4]} …")
    for echo in echoes:
        request = echo.request(rows)
        if answer_to(request) != request.body:
            raise BenchedServerError(f"{echo.name} answered with something else than the request")


CALL_TIMEOUT_S: Final = 30


def answer_to(request: ScoringRequest) -> bytes:
    """Make a call whose message is the request's body, and return the message of its answer."""
    metadata = [(name.lower(), value) for name, value in request.headers.items()]
    with grpc.insecure_channel(f"{request.host}:{request.port}") as channel:
        try:
            answer: bytes = channel.unary_unary(request.path)(
                request.body, metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise BenchedServerError(f"{request.uri} answered {error}") from error
    return answer


SOURCE: Final = Path(__file__).parents[1] / "contestants" / "baselines" / "grpc_echo.cpp"
INSTALL: Final = "install g++, pkg-config and libgrpc++-dev (Debian's names)"
BUILD_TIMEOUT_S: Final = 300


class EchoNotBuilt(BenchedServerError):
    """This machine cannot build the echo; the message names what is missing."""

    code = "echo_not_built"


def cpp_echo_launch(path: str, folder: Path) -> Launch:
    """Compile the C++ echo into a folder, and start it for calls of a method's path.

    Raises:
        EchoNotBuilt: The compiler or gRPC's library is missing, or the source does not compile.
    """
    program, port = folder / "grpc-echo", free_port()
    try:
        flags = _output("pkg-config", "--cflags", "--libs", "grpc++").split()
        _output("c++", "-std=c++17", "-O2", str(SOURCE), *flags, "-o", str(program))
    except FileNotFoundError as error:
        raise EchoNotBuilt(f"{error.filename} is missing; {INSTALL}") from error
    except subprocess.CalledProcessError as error:
        reason = next((line for line in error.stderr.splitlines() if "error" in line), error.stderr)
        raise EchoNotBuilt(f"{error.cmd[0]} failed: {reason.strip()}; {INSTALL}") from error
    except subprocess.TimeoutExpired as error:
        raise EchoNotBuilt(f"{error.cmd[0]} did not end within {BUILD_TIMEOUT_S} s") from error
    return Launch(CPP_ECHO, (str(program), f"{HOST}:{port}"), port, ready_path="", score_path=path)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT_S)
    return done.stdout.strip()
