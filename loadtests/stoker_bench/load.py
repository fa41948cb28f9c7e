"""`make load`: locust's users against a server, headless, with an exit code.

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
from pathlib import Path
from urllib.parse import urlsplit

from stoker.commands.terminal import number_option
from stoker.errors import OperatorError
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.contestants.servers import Launch, RunningServer, ended_by_sigterm, stoker_launch
from stoker_bench.networks.onnx_graphs import seeded_mlp

LOCUSTFILE = Path(__file__).resolve().parents[1] / "locustfile.py"
STOP_TIMEOUT_S = 60
LAST_ANSWERS_S = 30
CONNECT_TIMEOUT_S = 5.0
INTERRUPTED = 130


def argument_parser() -> argparse.ArgumentParser:
    """Declare the command's options."""
    parser = argparse.ArgumentParser(prog="python -m stoker_bench.load", description=__doc__)
    count = number_option(int, 1, 1_000_000)
    parser.add_argument("--uri", help="scoring URI of a running server (default: start one)")
    parser.add_argument("--key", default=os.environ.get("STOKER_PRIMARY_KEY"), help="its bearer key")
    parser.add_argument("--model", type=Path, help="ONNX file to serve, or the one served at --uri")
    parser.add_argument(
        "--users", type=count, default=32, help="users, who come during the first half (default: 32)"
    )
    parser.add_argument("--seconds", type=count, default=20, help="length of the test (default: 20)")
    parser.add_argument("--rows", type=count, default=1, help="rows a request (default: 1)")
    parser.add_argument(
        "--texts", type=Path, help="send the texts in this file, one a line, in place of rows"
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
        return run_locust(args, uri, key, model)


def run_locust(args: argparse.Namespace, uri: str, key: str | None, model: Path | None) -> int:
    """Run locust, which prints its figures; return 0 if no request failed, else its exit code."""
    if not LOCUSTFILE.exists():
        raise OperatorError(f"{LOCUSTFILE} is missing; run this in a checkout of the repository")
    # Others could read the key on the command line.
    environment = {**os.environ, "STOKER_PRIMARY_KEY": key or ""}
    command = locust_command(args, uri, model)
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return process.wait(args.seconds + STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise OperatorError(f"locust did not end {STOP_TIMEOUT_S} s after its time") from error
    finally:
        ProcessTree(process.pid).kill()
        process.wait()


def locust_command(args: argparse.Namespace, uri: str, model: Path | None) -> list[str]:
    """Return locust's command line; with a model, the users check each class."""
    parts = urlsplit(uri)
    command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--headless"]
    command += ["--only-summary", "--loglevel", "WARNING"]
    command += ["--host", f"{parts.scheme}://{parts.netloc}", "--score-path", parts.path or "/score"]
    command += ["--users", str(args.users), "--spawn-rate", str(2 * args.users / args.seconds)]
    # At the end users wait for their answers: requests that are cut off would count nowhere.
    command += ["--run-time", f"{args.seconds}s", "--stop-timeout", str(LAST_ANSWERS_S)]
    command += ["--rows-per-request", str(args.rows)]
    if args.texts:
        return [*command, "--texts", str(args.texts)]
    return [*command, "--served-model", str(model)] if model else command


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
