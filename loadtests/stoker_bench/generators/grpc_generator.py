"""Closed-loop load by unary calls of gRPC: h2load where it is installed, the bench's own generator otherwise.

Decision 23 compares generators and their cost.
"""

from __future__ import annotations

import math
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import grpc
import numpy as np
from numpy.typing import NDArray

from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import (
    GeneratorError,
    LoadFigures,
    LoadGenerator,
    OwnGenerator,
    figures_of,
    output_of,
)
from stoker_bench.generators.scoring_request import ScoringRequest

PREFIX_BYTES: Final = 5
"""gRPC's prefix of each message: whether it is compressed, and its length."""
NOTABLE_SHARE: Final = 0.5
_REQUESTS: Final = re.compile(r"^requests: .*? (\d+) succeeded, (\d+) failed", re.MULTILINE)
_DATA: Final = re.compile(r"^traffic: .*\((\d+)\) data$", re.MULTILINE)


def pick_grpc_generator() -> LoadGenerator:
    """Return h2load where it is installed, else the own generator."""
    program = shutil.which("h2load")
    return H2Load(program) if program else OwnGenerator(grpc=True)


class H2Load:
    """h2load (nghttp2) with one thread, and one call at a time on each connection.

    It counts HTTP statuses, which are 200 for failed calls too; it does not report gRPC's status in the trailers. So
    answers are counted by their bytes: a failed call has no message, and a successful one has as many bytes as the
    answer to the same call by gRPC's own client before the load.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._answer_bytes: dict[tuple[str, bytes], int] = {}

    @property
    def description(self) -> str:
        """The version of h2load, and how answers are counted."""
        version = subprocess.run(
            [self._program, "--version"], capture_output=True, text=True, check=False
        ).stdout
        return f"{' '.join(version.split()[:2]) or 'h2load'} (one thread, answers counted by their bytes)"

    def run(self, request: ScoringRequest, connections: int, seconds: float) -> LoadFigures:
        """See LoadGenerator.run."""
        key = (request.uri, request.body)
        if key not in self._answer_bytes:
            self._answer_bytes[key] = PREFIX_BYTES + len(answer_to(request))
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            message, log = Path(folder, "message"), Path(folder, "log")
            message.write_bytes(struct.pack(">BI", 0, len(request.body)) + request.body)
            command = [
                self._program,
                "-t1",
                f"-c{connections}",
                "-m1",
                f"--duration={round(seconds * 1e3)}ms",
            ]
            for name, value in {
                "te": "trailers",
                "content-type": "application/grpc",
                **{name.lower(): value for name, value in request.headers.items()},
            }.items():
                command += ["-H", f"{name}: {value}"]
            output = output_of([*command, f"--data={message}", f"--log-file={log}", request.uri], seconds)
            # The columns are the µs since 1970 at which a request began, its status, and the µs that it took.
            times_us = np.loadtxt(log, dtype=np.int64, ndmin=2) if log.stat().st_size else np.empty((0, 3))
        return h2load_figures(
            output,
            times_us[:, 0] / 1e6,
            times_us[:, 2] / 1e6,
            answer_bytes=self._answer_bytes[key],
            connections=connections,
            seconds=seconds,
        )


def h2load_figures(
    output: str,
    began_s: NDArray[np.float64],
    latencies_s: NDArray[np.float64],
    *,
    answer_bytes: int,
    connections: int,
    seconds: float,
) -> LoadFigures:
    """Return h2load's figures; answers without a message are errors, and so are missing callers.

    Args:
        began_s: When each logged request began, by any clock.
        answer_bytes: Size of a successful answer's message, with its prefix.

    Raises:
        GeneratorError: It reached nobody, or got answers of another size than the one before the load.
    """
    requests, data = _REQUESTS.search(output), _DATA.search(output)
    if requests is None or data is None or requests[1] == requests[2] == "0":
        raise GeneratorError(f"h2load got no answers; it said: {output.strip() or 'nothing'}")
    succeeded, failed, data_bytes = int(requests[1]), int(requests[2]), int(data[1])
    # At the end each connection may be in the midst of one more.
    if data_bytes > answer_bytes * (succeeded + connections):
        raise GeneratorError(
            f"{succeeded:,} answers had {data_bytes:,} bytes; the one before the load had {answer_bytes:,}"
        )
    answered = min(succeeded, data_bytes // answer_bytes)
    figures = figures_of(latencies_s, 0, seconds)
    return LoadFigures(
        requests=answered,
        errors=failed + succeeded - answered + _callers_gone(began_s, latencies_s, connections, seconds),
        duration_s=seconds,
        p50_ms=figures.p50_ms,
        p99_ms=figures.p99_ms,
    )


def _callers_gone(
    began_s: NDArray[np.float64], latencies_s: NDArray[np.float64], connections: int, seconds: float
) -> int:
    """Return how many callers were missing in the second half of the run, if it is at least half of them.

    h2load does not report them. In a closed loop a caller nearly always waits for an answer, except while h2load
    itself is short of cores. Requests cut off at the end are not in the log, so the half ends earlier by the longest
    latency.
    """
    begin_s, end_s = seconds / 2, seconds - latencies_s.max(initial=0.0)
    if end_s <= begin_s:
        return 0
    since_s = began_s - began_s.min(initial=math.inf)
    waited_s = np.minimum(since_s + latencies_s, end_s) - np.maximum(since_s, begin_s)
    gone = connections - float(waited_s.clip(0).sum()) / (end_s - begin_s)
    return round(gone) if gone > connections * NOTABLE_SHARE else 0


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
