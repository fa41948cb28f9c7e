"""Servers on the loopback, started in a session of their own, with the CPU time and memory of their process trees."""

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
from urllib.parse import urlsplit

import psutil
import yaml

from stoker.errors import InvalidSettings
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.scoring_request import scoring_request

KILL_TIMEOUT_S, KILL_POLL_S = 5.0, 0.005


@dataclass(frozen=True)
class Memory:
    """Memory of one process or a sum over several."""

    pss_bytes: int
    """Proportional set size: a page shared by n processes counts 1/n in each."""
    rss_bytes: int

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.pss_bytes + other.pss_bytes, self.rss_bytes + other.rss_bytes)


class ProcessTree:
    """Root processes with all descendants, and other processes in the roots' sessions.

    The bench starts each server in a session of its own, so that orphaned children are found.
    """

    def __init__(self, *roots: int) -> None:
        self.roots = roots

    def pids(self) -> list[int]:
        """Return the living processes of the tree, zombies included, in ascending order."""
        return sorted(process.pid for process in self.processes())

    def processes(self) -> frozenset[psutil.Process]:
        """Return the processes as objects that are equal only for the same process, even if its pid is reused."""
        members: set[psutil.Process] = set()
        for process in _processes():
            if process not in members and (process.pid in self.roots or _session(process.pid) in self.roots):
                members.add(process)
                with contextlib.suppress(psutil.NoSuchProcess):
                    members.update(process.children(recursive=True))
        return frozenset(members)

    def kill(self, earlier: frozenset[psutil.Process] = frozenset()) -> None:
        """SIGKILL the tree's processes, and those of `earlier` that live on outside it; await their end."""
        doomed = self.processes() | earlier
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        give_up_s = time.monotonic() + KILL_TIMEOUT_S
        # Not psutil.wait_procs: of a child of this process it would take the exit code that Popen has to tell.
        while any(map(_runs, doomed)) and time.monotonic() < give_up_s:
            time.sleep(KILL_POLL_S)

    def cpu_s(self) -> float:
        """Return the CPU seconds that the tree has used; meaningful as a difference.

        Time of children that ended and were waited for is in it, so a process that ends between two
        readings loses nothing.
        """
        total_s = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system + times.children_user + times.children_system
        return total_s

    def memory(self) -> Memory:
        """Return the summed memory of all processes.

        Raises:
            psutil.AccessDenied: If a process belongs to another user.
        """
        total = Memory(0, 0)
        for pid in self.pids():
            total += self.memory_of(pid)
        return total

    def named(self, command_part: str) -> list[int]:
        """Return the processes whose command line contains `command_part`."""
        return sorted(process.pid for process in self.processes() if command_part in _command_line(process))

    def maps(self, pid: int, library_part: str) -> bool:
        """Return whether the process has mapped a file with `library_part` in its name."""
        try:
            mapped = psutil.Process(pid).memory_maps()
        except psutil.NoSuchProcess:
            return False
        return any(library_part in Path(each.path).name for each in mapped)

    def memory_of(self, pid: int) -> Memory:
        """Return the memory of one process; zero once it has ended."""
        try:
            memory = psutil.Process(pid).memory_full_info()
        except psutil.NoSuchProcess:
            return Memory(0, 0)
        return Memory(memory.pss, memory.rss)


def machine_busy_s() -> float:
    """Return the CPU seconds that all processes of the machine have used, stolen time included."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def listening_processes(port: int) -> list[int]:
    """Return the processes of this machine that hold a socket listening on the TCP port.

    Each is asked for its own: of a socket that several hold, psutil's list for the whole machine names one.
    """
    return sorted(process.pid for process in _processes() if _listens(process, port))


def serving_roots(port: int) -> list[int]:
    """Return the processes at the top of the server that listens on the port.

    From a listening process this climbs to its `stoker serve`, so that the device processes are in the tree.
    """
    roots = {_top(psutil.Process(pid)) for pid in listening_processes(port)}
    return sorted(root.pid for root in roots if root.parent() not in roots)


def _top(process: psutil.Process) -> psutil.Process:
    while (parent := process.parent()) is not None and _is_stoker_serve(_command_line(parent)):
        process = parent
    return process


def _is_stoker_serve(command_line: str) -> bool:
    return "stoker" in command_line and " serve" in command_line


def _processes() -> Iterator[psutil.Process]:
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _session(pid: int) -> int | None:
    """Return the session of a process, which psutil does not have."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        sockets = process.net_connections("tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)


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
        log: The file for its output; errors quote the end.
        ready_body: A request that has to be answered with 200 for the server to count as ready; by default its
            `ready_path`.
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
        """Return an error about this server, with the end of its log."""
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
    """Return the process tree of the server at a URI; None if it is not on this machine."""
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
