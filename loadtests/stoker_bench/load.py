"""`make load`: locust's users against a server, headless, with a summary and an exit code.

Without --uri it serves the benchmark's seeded MLP (or --model) itself, and checks every class against the runtime's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from stoker.commands.terminal import number_option
from stoker.errors import OperatorError
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.contestants.servers import Launch, RunningServer, ended_by_sigterm, stoker_launch
from stoker_bench.networks.onnx_graphs import seeded_mlp
from stoker_bench.reports import aligned, figure
from stoker_bench.users import SHAPES

LOCUSTFILE = Path(__file__).resolve().parents[1] / "locustfile.py"
STAGE_UNIT = " µs"
STOP_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 5.0
INTERRUPTED = 130


@dataclass(frozen=True)
class LoadTest:
    """The options of a locust run.

    Attributes:
        shape: One of `stoker_bench.users.SHAPES`.
        mnist_folder: The folder with MNIST's IDX files, or None for drawn digits.
        model: The served ONNX file, to check the classes, or None.
    """

    uri: str
    key: str | None
    users: int
    seconds: int
    shape: str
    rows: int
    mnist_folder: Path | None
    model: Path | None

    def command(self, figures: Path) -> list[str]:
        """Return locust's command line; it writes the final figures to `figures` with `.json` appended."""
        parts = urlsplit(self.uri)
        command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--headless"]
        command += ["--only-summary", "--loglevel", "WARNING", "--json-file", str(figures)]
        command += ["--host", f"{parts.scheme}://{parts.netloc}", "--score-path", parts.path or "/score"]
        command += ["--users", str(self.users), "--run-time", f"{self.seconds}s", "--load-shape", self.shape]
        command += ["--rows-per-request", str(self.rows)]
        if self.mnist_folder:
            command += ["--mnist-dir", str(self.mnist_folder)]
        if self.model:
            command += ["--served-model", str(self.model)]
        return command


def run_load_test(test: LoadTest) -> int:
    """Run locust, print the summary, and return 0 if no request failed, else locust's exit code."""
    if not LOCUSTFILE.exists():
        raise OperatorError(f"{LOCUSTFILE} is missing; run this in a checkout of the repository")
    with tempfile.TemporaryDirectory(prefix="stoker-load-") as folder:
        figures = Path(folder, "figures")
        environment = {**os.environ, "STOKER_PRIMARY_KEY": test.key or ""}
        process = subprocess.Popen(test.command(figures), env=environment, start_new_session=True)
        try:
            code = process.wait(test.seconds + STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise OperatorError(f"locust did not end {STOP_TIMEOUT_S} s after its time") from error
        finally:
            ProcessTree(process.pid).kill()
            process.wait()
        written = figures.with_suffix(".json")
        if not written.exists():
            raise OperatorError(f"locust ended with exit code {code} and left no figures; its log is above")
        entries: list[dict[str, Any]] = orjson.loads(written.read_bytes())
    print(summary(entries))
    scored = [entry for entry in entries if entry["method"] == "POST"]
    return code or int(not scored or any(entry["num_failures"] for entry in scored))


def summary(entries: Sequence[dict[str, Any]]) -> str:
    """Return a table of locust's final figures: the requests, then the stages that the server reported."""
    headings = ["", "requests", "failed", "a second", "mean ms", "p50 ms", "p99 ms", "max ms"]
    rows: list[list[str]] = []
    if not entries:
        return "no request was made"
    began_s = min(entry["start_time"] for entry in entries)
    seconds = max(entry["last_request_timestamp"] or began_s for entry in entries) - began_s
    for entry in sorted(entries, key=lambda each: (each["method"] != "POST", each["name"])):
        count, is_request = entry["num_requests"], entry["method"] == "POST"
        # The locustfile reports stages in microseconds, below locust's resolution of milliseconds.
        unit_ms = 1 if is_request else 1e-3
        times = [entry["total_response_time"] / max(count, 1), _percentile(entry, 0.5)]
        times += [_percentile(entry, 0.99), entry["max_response_time"]]
        figures = [count / max(seconds, 1e-9), *(time * unit_ms for time in times)]
        name = entry["name"] if is_request else f"  {entry['name'].removesuffix(STAGE_UNIT)}"
        rows.append([name, f"{count:,}", f"{entry['num_failures']:,}", *map(figure, figures)])
    return aligned(headings, rows)


def _percentile(entry: dict[str, Any], share: float) -> float:
    """Return a percentile from locust's histogram of rounded times to counts."""
    counts = sorted((float(time), count) for time, count in entry["response_times"].items())
    rank, seen = share * sum(count for _, count in counts), 0
    for time, count in counts:
        seen += count
        if seen >= rank:
            return time
    return 0.0


def argument_parser() -> argparse.ArgumentParser:
    """Declare the command's options."""
    parser = argparse.ArgumentParser(prog="python -m stoker_bench.load", description=__doc__)
    count = number_option(int, 1, 1_000_000)
    parser.add_argument("--uri", help="scoring URI of a running server (default: start one)")
    parser.add_argument("--key", default=os.environ.get("STOKER_PRIMARY_KEY"), help="its bearer key")
    parser.add_argument("--model", type=Path, help="ONNX file to serve, or the one served at --uri")
    parser.add_argument("--users", type=count, default=32, help="users at the peak (default: 32)")
    parser.add_argument("--seconds", type=count, default=20, help="length of the test (default: 20)")
    parser.add_argument(
        "--shape", choices=SHAPES, default="ramp", help="how the users come and go (default: ramp)"
    )
    parser.add_argument("--rows", type=count, default=1, help="rows a request (default: 1)")
    parser.add_argument(
        "--mnist-dir", type=Path, help="MNIST's IDX files (default: digits drawn by a program)"
    )
    return parser


def main() -> int:
    """Run the load test."""
    args = argument_parser().parse_args()
    try:
        with ended_by_sigterm():
            return _run(args)
    except OperatorError as error:
        print(f"load: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    if args.uri is not None:
        _check_reachable(args.uri)
    with tempfile.TemporaryDirectory(prefix="stoker-load-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        uri, key, model = args.uri, args.key, args.model
        if uri is None:
            launch, model = _model_launch(folder, model)
            print("load: starting stoker serve …", file=sys.stderr, flush=True)
            stack.enter_context(RunningServer(launch, folder / "server.log"))
            uri, key = launch.uri, launch.key
        test = LoadTest(uri, key, args.users, args.seconds, args.shape, args.rows, args.mnist_dir, model)
        return run_load_test(test)


def _check_reachable(uri: str) -> None:
    """Raise an error if nothing listens: otherwise a test would only measure refused connections."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OperatorError(f"{uri!r} is no scoring URI; give one such as http://127.0.0.1:8080/score")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise OperatorError(f"{uri} cannot be reached: {error}; is the server running there?") from error


def _model_launch(folder: Path, model: Path | None) -> tuple[Launch, Path]:
    """Return how to serve a model, and that; the seeded one if none is given."""
    if model is None:
        model = folder / "mlp.onnx"
        seeded_mlp().save(model)
    return stoker_launch(model, folder / "workspace", secrets.token_urlsafe(32)), model


if __name__ == "__main__":
    sys.exit(main())
