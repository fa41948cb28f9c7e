"""Servers on the loopback: how each is started, awaited, asked and ended."""

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

import yaml

from stoker.errors import InvalidSettings
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.scoring_request import scoring_request

HOST = "127.0.0.1"
READY_TIMEOUT_S = 120.0
READY_POLL_S = 0.01
STOP_TIMEOUT_S = 15.0
HTTP_OK = 200
LOG_TAIL_LINES = 15
FIRST_PORT, ENOUGH_PORTS = 20_000, 5_000
_given_ports: set[int] = set()


@dataclass(frozen=True)
class Launch:
    """How to start a server.

    Attributes:
        name: Its name in tables.
        command: The command line with the port.
        port: Its loopback port.
        ready_path: GET answers 200 here once the server can score; empty if it can once it accepts connections.
        score_path: POST scores here.
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
    """Return a loopback port that nothing listens on, and that the system gives to nobody who takes any port.

    Connections, and servers that take port 0, have ports of the system's range, some of them on other addresses.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    while True:
        # Where the system's range leaves too few, it chooses.
        below = first - FIRST_PORT
        port = FIRST_PORT + secrets.randbelow(below) if below > ENOUGH_PORTS else 0
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            port = int(probe.getsockname()[1])
            if port not in _given_ports:
                _given_ports.add(port)
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
    served: Sequence[str], options: Sequence[str], workspace: Path, key: str, name: str
) -> Launch:
    port = free_port()
    command = (sys.executable, "-m", "stoker.cli", "serve", *served)
    command += ("--host", HOST, "--port", str(port), "--workspace", str(workspace), *options)
    environment = {"STOKER_PRIMARY_KEY": key}
    return Launch(name, command, port, "/v2/health/ready", environment=environment, key=key)


class RunningServer:
    """A server process with its tree; a context manager that ends every process of it.

    Args:
        log: The file for its output; errors quote the end.
        ready_body: A request that has to be answered with 200 for the server to count as ready; by default its
            `ready_path`.
    """

    def __init__(self, launch: Launch, log: Path, ready_body: bytes | None = None) -> None:
        self.launch = launch
        self._log = log
        self._ready_body = ready_body

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

    def failed(self, event: str) -> BenchedServerError:
        """Return an error about this server, with the end of its log."""
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "".join(f"\n  | {line}" for line in lines)
        return BenchedServerError(f"{self.launch.name} {event}.{tail}")

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


OTHER: Final = "other Stoker"
# Neither the folder nor the path of the bench: a Stoker that is found there is the one that is benched.
_SAFE_PATH: Final = "-P"
_NO_PATH: Final = {"PYTHONPATH": ""}


def other_launch(
    python: Path, model: Path, folder: Path, frontends: int | None = None, options: Sequence[str] = ()
) -> Launch:
    """Start `stoker serve MODEL` of the environment that has this Python, with a key of its own.

    Args:
        folder: The parent of its workspace.
        frontends: Number of frontend processes; None for its default.

    Raises:
        InvalidSettings: See `check_python`.
    """
    check_python(python)
    key, workspace = secrets.token_urlsafe(32), folder / "other-workspace"
    launch = stoker_launch(model, workspace, key, frontends, name=OTHER, options=options)
    return replace(
        launch,
        command=(str(python), _SAFE_PATH, *launch.command[1:]),
        environment={**launch.environment, **_NO_PATH},
    )


def check_python(python: Path) -> None:
    """Find out whether this Python has a Stoker."""
    try:
        tried = subprocess.run(
            [python, _SAFE_PATH, "-c", "import stoker.cli"],
            env={**os.environ, **_NO_PATH},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise InvalidSettings(
            f"--against {python}: {error.strerror}; it takes the Python of an environment, such as "
            "../before/.venv/bin/python"
        ) from error
    if tried.returncode:
        (*_, reason) = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
        raise InvalidSettings(f"--against {python}: that environment has no Stoker ({reason})")
