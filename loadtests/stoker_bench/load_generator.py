"""Closed-loop load on one scoring request: wrk where it is installed, a generator of our own otherwise."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import orjson

from stoker.errors import OperatorError

if TYPE_CHECKING:
    from stoker_bench.scoring_request import ScoringRequest

__all__ = [
    "GeneratorError",
    "LoadFigures",
    "LoadGenerator",
    "OwnGenerator",
    "Wrk",
    "output_of",
    "pick_generator",
]

GRACE_S = 30
TIMEOUT_S = 20
WRK_SCRIPT = """\
function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.body = file:read("*a")
  file:close()
end

function done(summary, latency, requests)
  io.write(string.format(
    '\\n{"requests":%d,"duration_us":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,'
      .. '"p50_us":%.1f,"p99_us":%.1f}\\n',
    summary.requests, summary.duration, summary.errors.connect, summary.errors.read, summary.errors.write,
    summary.errors.status, summary.errors.timeout, latency:percentile(50), latency:percentile(99)))
end
"""


class GeneratorError(OperatorError):
    """A load generator could not run, or gave no figures."""

    code = "generator_failed"


@dataclass(frozen=True)
class LoadFigures:
    """What the callers saw during one slice."""

    requests: int
    """Requests answered with a status below 400 (wrk) or of 2xx (own generator)."""
    errors: int
    """Other statuses, broken connections and time-outs."""
    duration_s: float
    p50_ms: float
    p99_ms: float

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second."""
        return self.requests / self.duration_s if self.duration_s else 0.0


class LoadGenerator(Protocol):
    """Sends the same request on kept-alive connections, each as soon as its last answer is complete."""

    @property
    def description(self) -> str:
        """The generator's name and version, for the report."""

    def run(self, request: ScoringRequest, connections: int, seconds: int) -> LoadFigures:
        """Load the server for the given time.

        Raises:
            GeneratorError: If the generator could not run.
        """


class Wrk:
    """wrk (https://github.com/wg/wrk) with one thread; its Lua builds the request just once."""

    def __init__(self, program: str) -> None:
        self._program = program

    @property
    def description(self) -> str:
        """The version that wrk tells."""
        told = subprocess.run([self._program, "-v"], capture_output=True, text=True, check=False).stdout
        return " ".join(told.split()[:2]) or "wrk"

    def run(self, request: ScoringRequest, connections: int, seconds: int) -> LoadFigures:
        """See LoadGenerator.run."""
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            script, body = Path(folder, "post.lua"), Path(folder, "body")
            script.write_text(f'wrk.method = "POST"\n{WRK_SCRIPT}')
            body.write_bytes(request.body)
            command = [self._program, "-t1", f"-c{connections}", f"-d{seconds}s", f"--timeout={TIMEOUT_S}s"]
            for name, value in request.headers.items():
                command += ["-H", f"{name}: {value}"]
            command += ["-s", str(script), request.uri, "--", str(body)]
            return parse_wrk(output_of(command, seconds))


def parse_wrk(output: str) -> LoadFigures:
    """Read the figures that the script's `done` wrote as the last line of wrk's output.

    Raises:
        GeneratorError: If there is no such line, as when wrk could not connect.
    """
    line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), None)
    if line is None:
        raise GeneratorError(f"wrk gave no figures; it said: {output.strip() or 'nothing'}")
    told = orjson.loads(line)
    broken = sum(told[kind] for kind in ("connect", "read", "write", "timeout"))
    return LoadFigures(
        requests=told["requests"] - told["status"],
        errors=told["status"] + broken,
        duration_s=told["duration_us"] / 1e6,
        p50_ms=told["p50_us"] / 1e3,
        p99_ms=told["p99_us"] / 1e3,
    )


class OwnGenerator:
    """The generator of `stoker_bench.closed_loop` in a process of its own."""

    description = "the bench's own generator (uvloop, one process)"

    def run(self, request: ScoringRequest, connections: int, seconds: int) -> LoadFigures:
        """See LoadGenerator.run."""
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            message = Path(folder, "request")
            message.write_bytes(request.http_bytes)
            command = [sys.executable, "-m", "stoker_bench.closed_loop", "--host", request.host]
            command += ["--port", str(request.port), "--request", str(message)]
            command += ["--connections", str(connections), "--seconds", str(seconds)]
            output = output_of(command, seconds)
        return LoadFigures(**orjson.loads(output))


def pick_generator() -> LoadGenerator:
    """Return wrk where it is installed, else the own generator."""
    program = shutil.which("wrk")
    return Wrk(program) if program else OwnGenerator()


def output_of(command: list[str], seconds: int) -> str:
    """Run a generator in a session of its own, so that a Ctrl-C meets only the bench, which ends it."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, complaint = process.communicate(timeout=seconds + GRACE_S)
    except subprocess.TimeoutExpired as error:
        raise GeneratorError(f"{command[0]} did not end within {seconds + GRACE_S} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise GeneratorError(f"{' '.join(command[:3])} failed: {complaint.strip() or output.strip()}")
    return output
