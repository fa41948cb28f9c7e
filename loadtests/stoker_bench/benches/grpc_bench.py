"""`stoker bench --grpc`: unary calls of the Open Inference Protocol, compared with bare echoes in Python and C++."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.gateway.grpc.messages import SERVICE, ModelInferRequest, ModelInferResponse
from stoker_bench.benches.lineup import WARM_UP_S, BenchOptions, Lineup
from stoker_bench.contestants.contest import Case, LoadedServer
from stoker_bench.contestants.servers import HOST, OTHER, Launch, free_port
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.grpc_generator import answer_to, pick_grpc_generator
from stoker_bench.generators.scoring_request import Dialect, random_rows
from stoker_bench.networks.served_model import ServedModel
from stoker_bench.reports import Bound, CaseResult, Report, at_least, at_most, p50_ms, rows_per_s, say

GRPC, ECHO = "gRPC", "bare grpc.aio echo"
PATH = f"/{SERVICE}/ModelInfer"
CONNECTIONS = (64, 1)
LEAST_OF_ECHO = 0.8
LEAST_OF_CPP_ECHO, MOST_OF_CPP_ECHO_P50 = 0.6, 1.3
TOLERANCE = 1e-3


@dataclass
class GrpcReport(Report):
    """The results of a gRPC bench.

    Attributes:
        left_out: Why contestants are missing, one sentence each.
    """

    left_out: list[str] = field(default_factory=list)

    def bounds(self) -> list[Bound]:
        """Return the bounds whose figures this run has."""
        return [bound for result in self.cases for bound in _case_bounds(result)]

    def notes(self) -> list[str]:
        """Return why contestants are missing."""
        return self.left_out

    def further(self) -> dict[str, Any]:
        """Return why contestants are missing."""
        return {"left_out": self.left_out}


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


def run_grpc_bench(options: BenchOptions) -> GrpcReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: A server does not start or answers wrongly, or the load generator fails.
    """
    connections = options.concurrency or CONNECTIONS
    options = dataclasses.replace(options, frontends=options.frontends or 1)
    with Lineup(options, pick_grpc_generator()) as lineup:
        model = lineup.model
        dialect = _dialect(model.input_name)
        launches, left_out = _echo_launches()
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
        report = lineup.report(GrpcReport, model.name, left_out=left_out)
        report.cases += [lineup.contest([*servers, *echoes], Case(each)) for each in connections]
        return report


def _echo_launches() -> tuple[list[Launch], list[str]]:
    """Return how to start the echoes that this machine has, and why others are left out."""
    say(f"building the {CPP_ECHO}, where that has not been done yet")
    try:
        return [echo_launch(), cpp_echo_launch(PATH)], []
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


CPP_ECHO: Final = "bare C++ echo"
SOURCE: Final = Path(__file__).parents[1] / "contestants" / "baselines" / "grpc_echo.cpp"
COMPILER, LIBRARIES_OF, LIBRARY = "c++", "pkg-config", "grpc++"
INSTALL: Final = "install g++, pkg-config and libgrpc++-dev (Debian's names)"
BUILD_TIMEOUT_S: Final = 300


class EchoNotBuilt(BenchedServerError):
    """This machine cannot build the echo; the message names what is missing."""

    code = "echo_not_built"


def cpp_echo_launch(path: str) -> Launch:
    """Start the C++ echo for calls of a method's path, built if necessary; raises EchoNotBuilt."""
    port = free_port()
    return Launch(CPP_ECHO, (str(cpp_echo_program()), f"{HOST}:{port}"), port, ready_path="", score_path=path)


def cpp_echo_program() -> Path:
    """Return the compiled echo, from the cache or built into it.

    Raises:
        EchoNotBuilt: The compiler or gRPC's library is missing, or the source does not compile.
    """
    for program in (COMPILER, LIBRARIES_OF):
        if shutil.which(program) is None:
            raise EchoNotBuilt(f"{program} is missing; {INSTALL}")
    try:
        flags = _output(LIBRARIES_OF, "--cflags", "--libs", LIBRARY).split()
        version = _output(LIBRARIES_OF, "--modversion", LIBRARY) + _output(COMPILER, "--version")
    except subprocess.CalledProcessError as error:
        raise EchoNotBuilt(f"gRPC's library for C++ is missing; {INSTALL}") from error
    command = [COMPILER, "-std=c++17", "-O2", str(SOURCE), *flags]
    # Another source, compiler or library is another program.
    key = hashlib.sha256("\0".join([SOURCE.read_text(), version, *flags]).encode()).hexdigest()
    try:
        folder = _cache()
        program_file = folder / f"grpc-echo-{key[:16]}"
        if not program_file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _build(command, program_file)
    except (OSError, RuntimeError) as error:
        raise EchoNotBuilt(f"the cache for it cannot be written: {error}") from error
    return program_file


def _cache() -> Path:
    """Return the folder of built programs; RuntimeError if the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "stoker-bench"


def _build(command: list[str], program: Path) -> None:
    """Compile next to the program's place, and move it there: two benches may build it at once."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=program.parent) as folder:
        built = Path(folder, program.name)
        try:
            _output(*command, "-o", str(built))
        except subprocess.CalledProcessError as error:
            reason = next(
                (line for line in error.stderr.splitlines() if "error" in line), "it said nothing of it"
            )
            raise EchoNotBuilt(f"{COMPILER} does not compile it: {reason.strip()}") from error
        except subprocess.TimeoutExpired as error:
            raise EchoNotBuilt(f"{COMPILER} did not compile it within {BUILD_TIMEOUT_S} s") from error
        built.replace(program)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT_S)
    return done.stdout.strip()
