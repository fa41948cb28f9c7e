"""Closed-loop load on one scoring request, by processes beside the bench (decision 23)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from stoker.errors import OperatorError
from stoker_bench.generators.scoring_request import ScoringRequest

GRACE_S = 30


class GeneratorError(OperatorError):
    """A load generator could not run, or gave no figures."""

    code = "generator_failed"


@dataclass(frozen=True)
class LoadFigures:
    """The callers' figures of one slice."""

    requests: int
    """Requests answered with a status of 2xx, calls of gRPC with OK."""
    errors: int
    """Other statuses and broken connections."""
    duration_s: float
    p50_ms: float
    p99_ms: float
    cores: float | None = None
    """Cores that the generator kept busy meanwhile; None where it does not tell."""

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second."""
        return self.requests / self.duration_s if self.duration_s else 0.0


def figures_of(
    latencies_s: Sequence[float] | NDArray[np.float64],
    errors: int,
    duration_s: float,
    cores: float | None = None,
) -> LoadFigures:
    """Return the figures of one slice, percentiles and all."""
    p50_s, p99_s = np.percentile(latencies_s, (50, 99)).tolist() if len(latencies_s) else (0.0, 0.0)
    return LoadFigures(len(latencies_s), errors, duration_s, p50_s * 1e3, p99_s * 1e3, cores)


class OwnGenerator:
    """Sends the same request on kept-alive connections, each as soon as its last answer is complete.

    It runs as `stoker_bench.generators.own_process`, in one process or several.

    Args:
        settle_s: How long connections are loaded before answers count, including the start of processes.
        grpc: Call by gRPC, not HTTP/1.1.
    """

    def __init__(self, processes: int = 1, settle_s: float = 0.0, *, grpc: bool = False) -> None:
        self.processes = processes
        self._settle_s = settle_s
        self._grpc = grpc
        several = "one process" if processes == 1 else f"{processes} processes"
        self.description = f"the bench's own generator{' for gRPC' * grpc} (uvloop, {several})"

    def run(
        self,
        request: ScoringRequest,
        connections: int,
        seconds: float,
        during: contextlib.AbstractContextManager[object] | None = None,
    ) -> LoadFigures:
        """Load the server; `during` is entered for just the seconds in which answers count."""
        begin_s = time.monotonic() + self._settle_s
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            body, headers = Path(folder, "body"), Path(folder, "headers")
            body.write_bytes(request.body)
            headers.write_bytes(orjson.dumps(request.headers))
            command = [sys.executable, "-m", "stoker_bench.generators.own_process", "--host", request.host]
            command += ["--port", str(request.port), "--path", request.path, "--body", str(body)]
            command += ["--headers", str(headers), "--seconds", str(seconds)]
            if self._grpc:
                command.append("--grpc")
            if self._settle_s:
                # All of them count the same seconds.
                command += ["--begin", str(begin_s)]
            shares = [share for share in shares_of(connections, self.processes) if share]
            files = [Path(folder, f"{number}.npy") for number in range(len(shares))]
            commands = [
                [*command, "--connections", str(share), "--latencies", str(file)]
                for share, file in zip(shares, files, strict=True)
            ]

            def watch() -> None:
                if during is not None:
                    time.sleep(max(0.0, begin_s - time.monotonic()))
                    with during:
                        time.sleep(seconds)

            outputs = outputs_of(commands, seconds + self._settle_s, watch)
            latencies_s = np.concatenate([np.load(file) for file in files])
        return _together([LoadFigures(**orjson.loads(output)) for output in outputs], latencies_s)


def shares_of(total: int, parts: int) -> list[int]:
    """Split a number into parts that differ by one at most."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _together(each: Sequence[LoadFigures], latencies_s: NDArray[np.float64]) -> LoadFigures:
    return figures_of(
        latencies_s,
        sum(figures.errors for figures in each),
        max(figures.duration_s for figures in each),
        sum(figures.cores or 0.0 for figures in each),
    )


def output_of(command: list[str], seconds: float) -> str:
    """Run a generator in a session of its own, so that a Ctrl-C meets only the bench, which ends it."""
    return outputs_of([command], seconds)[0]


def outputs_of(
    commands: Sequence[list[str]], seconds: float, meanwhile: Callable[[], None] = lambda: None
) -> list[str]:
    """Run several generators side by side, each in a session of its own, and do something meanwhile.

    Raises:
        GeneratorError: One failed, or did not end in time; none is left running.
    """
    give_up_s = time.monotonic() + seconds + GRACE_S
    with contextlib.ExitStack() as stack:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            stack.callback(_end, process)
            processes.append(process)
        meanwhile()
        return [
            _output(command, process, give_up_s) for command, process in zip(commands, processes, strict=True)
        ]


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _output(command: list[str], process: subprocess.Popen[str], give_up_s: float) -> str:
    try:
        output, complaint = process.communicate(timeout=max(0.0, give_up_s - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise GeneratorError(f"{command[0]} did not end within its time and {GRACE_S} s more") from error
    if process.returncode:
        raise GeneratorError(f"{' '.join(command[:3])} failed: {complaint.strip() or output.strip()}")
    return output
