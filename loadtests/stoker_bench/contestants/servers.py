"""Servers on the loopback: started in a session of their own, awaited until ready, ended whole."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import yaml

from stoker_bench.contestants.process_tree import ProcessTree, serving_roots
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.scoring_request import scoring_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType, TracebackType

__all__ = [
    "HOST",
    "Launch",
    "RunningServer",
    "deployment_launch",
    "ended_by_sigterm",
    "free_port",
    "get",
    "post",
    "stoker_launch",
    "tree_behind",
    "uvicorn_launch",
]

HOST = "127.0.0.1"
READY_TIMEOUT_S = 120.0
READY_POLL_S = 0.01
STOP_TIMEOUT_S = 15.0
HTTP_OK = 200
LOG_TAIL_LINES = 15


@dataclass(frozen=True)
class Launch:
    """How to start a server.

    Attributes:
        name: What the tables call it.
        command: argv; the port is in it.
        port: The loopback port that it will listen on.
        ready_path: GET here answers 200 once the server can score; if empty, it can once it takes connections.
        score_path: POST here scores.
        environment: Variables added to this process's environment.
        key: Bearer key to send, or None.
    """

    name: str
    command: tuple[str, ...]
    port: int
    ready_path: str = "/"
    score_path: str = "/score"
    environment: dict[str, str] = field(default_factory=dict)
    key: str | None = None

    @property
    def uri(self) -> str:
        """The scoring URI."""
        return f"http://{HOST}:{self.port}{self.score_path}"


def free_port() -> int:
    """Return a loopback port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def uvicorn_launch(name: str, app: str, environment: dict[str, str] | None = None) -> Launch:
    """Start an ASGI app under one uvicorn worker at its fastest setting."""
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", app, "--host", HOST, "--port", str(port))
    tuning = ("--http", "httptools", "--loop", "uvloop", "--lifespan", "off", "--no-access-log")
    return Launch(
        name, (*command, *tuning, "--log-level", "warning"), port, "/ready", environment=environment or {}
    )


def stoker_launch(
    model: Path,
    workspace: Path,
    key: str,
    frontends: int | None = None,
    *,
    name: str = "Stoker",
    options: Sequence[str] = (),
) -> Launch:
    """Start `stoker serve MODEL`, with further options, with the given key in a workspace of its own."""
    chosen = [] if frontends is None else ["--frontends", str(frontends)]
    return _serve_launch([str(model), "--name", "bench"], [*chosen, *options], workspace, key, name)


def deployment_launch(
    deployment: Mapping[str, Any], folder: Path, workspace: Path, options: Sequence[str] = ()
) -> Launch:
    """Start `stoker serve` with the content of a deployment file, which is written into a folder, and a new key."""
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(dict(deployment)), encoding="utf-8")
    return _serve_launch(["--config", str(file)], options, workspace, secrets.token_urlsafe(32), "Stoker")


def _serve_launch(
    what: Sequence[str], options: Sequence[str], workspace: Path, key: str, name: str
) -> Launch:
    port = free_port()
    command = (sys.executable, "-m", "stoker.cli", "serve", *what)
    command += ("--host", HOST, "--port", str(port), "--workspace", str(workspace), *options)
    environment = {"STOKER_PRIMARY_KEY": key}
    return Launch(name, command, port, "/v2/health/ready", environment=environment, key=key)


class RunningServer:
    """A server process with its tree; a context manager that ends every process of it.

    Args:
        launch: How to start it.
        log: Where its output goes; errors quote the end.
        ready_body: With a body, the server is ready once it answers 200 to that; without, once its
            `ready_path` does.
    """

    def __init__(self, launch: Launch, log: Path, ready_body: bytes | None = None) -> None:
        self.launch = launch
        self._log = log
        self._ready_body = ready_body
        self.start_s = 0.0
        """Seconds from starting the process until it was ready."""

    def __enter__(self) -> Self:
        started_s = time.monotonic()
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self.launch.command,
                env={**os.environ, **self.launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.tree = ProcessTree(self._process.pid)
        try:
            self._await_ready(started_s + READY_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - started_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _await_ready(self, give_up_s: float) -> None:
        while self._probe() != HTTP_OK:
            if self._process.poll() is not None:
                raise self.failed(f"ended with exit code {self._process.returncode} before it was ready")
            if time.monotonic() > give_up_s:
                raise self.failed(f"was not ready after {READY_TIMEOUT_S:.0f} s")
            time.sleep(READY_POLL_S)

    def _probe(self) -> int:
        if not self.launch.ready_path:
            with socket.socket() as probe:
                return HTTP_OK if probe.connect_ex((HOST, self.launch.port)) == 0 else 0
        if self._ready_body is None:
            return get(HOST, self.launch.port, self.launch.ready_path)[0]
        request = scoring_request(self.launch.uri, self._ready_body, self.launch.key)
        return post(HOST, self.launch.port, request.path, request.body, request.headers)[0]

    def failed(self, what: str) -> BenchedServerError:
        """Return the error that says what happened to this server, with the end of its log."""
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "".join(f"\n  | {line}" for line in lines)
        return BenchedServerError(f"{self.launch.name} {what}.{tail}")

    def stop(self) -> None:
        """Ask the server to end, then kill whatever of its tree is left; safe to call twice."""
        members = self.tree.processes()
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        finally:
            self.tree.kill(members)
            self._process.wait()


def tree_behind(uri: str) -> ProcessTree | None:
    """Return the process tree of the server at a URI; None where it is not one of this machine's."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    roots = serving_roots(parts.port or 80) if local else []
    return ProcessTree(*roots) if roots else None


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind this process as Ctrl-C does, so that every server it started is ended."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def get(host: str, port: int, path: str, key: str | None = None) -> tuple[int, bytes]:
    """GET a path; the status is 0 where nobody answers."""
    return _exchange(host, port, "GET", path, None, {"Authorization": f"Bearer {key}"} if key else {})


def post(host: str, port: int, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """POST a body; the status is 0 where nobody answers."""
    return _exchange(host, port, "POST", path, body, headers)


def _exchange(
    host: str, port: int, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
