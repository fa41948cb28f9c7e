"""Real servers for tests: `stoker serve` as a subprocess on a free port, and all processes that it starts.

All processes of a server are found by a mark in their environment, so none is overlooked when its parent has
died, and nothing of anybody else's is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Final, Self, TypeVar

from tests.http.raw_http import Answer, Connection, bearer, request, rows_body, scoring
from tests.observing import connections_of
from tests.patience import PATIENCE_S, PROGRAM_S

__all__ = [
    "PRIMARY",
    "SECONDARY",
    "LiveServer",
    "environment_with",
    "free_port",
    "marked_processes",
    "run_stoker",
    "wait_until",
]

PRIMARY: Final = "primary-key-of-the-tests-0001"
SECONDARY: Final = "secondary-key-of-the-tests-002"

_MARK: Final = "STOKER_TESTS_PROCESS_TREE"
_MEASURED: Final = "COVERAGE_PROCESS_CONFIG"
"""Set where `make coverage` measures which lines run; a process says which when it ends, but not if it is killed."""
_FRONTEND: Final = "stoker.gateway.frontend"
_DEVICE: Final = "stoker.device.process"

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
# Below it are those of Kubernetes' parts, and those that Ray takes for its workers.
_FIRST_PORT: Final = 20_000
_ENOUGH_PORTS: Final = 5_000
_DICE: Final = SystemRandom()
_given_ports: set[int] = set()

_T = TypeVar("_T")


def wait_until(
    look: Callable[[], _T], description: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.01
) -> _T:
    """Call `look` until its result is true, and return that; fails with the description after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {description}"
        time.sleep(every_s)
    return seen


def metric_total(exposed: str, name: str) -> float:
    """The sum of a metric over all labels, of a page of metrics; 0 if it is not shown."""
    return sum(map(float, re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", exposed, re.MULTILINE)))


def free_port() -> int:
    """A port that nobody listens on just now, and that the system gives to nobody who leaves the choice to it.

    Every connection, and every server that takes port 0, gets one of the system's range, thousands in a run of the
    tests: one of those could be taken by the time at which it is listened on.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    while True:
        port = _DICE.randrange(_FIRST_PORT, first) if first > _FIRST_PORT + _ENOUGH_PORTS else 0
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            if (port := int(sock.getsockname()[1])) not in _given_ports:
                _given_ports.add(port)
                return port


def environment_with(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would configure a server, plus `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "AZUREML_"))}
    return {**kept, **extra}


def run_stoker(
    *arguments: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a `stoker` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "stoker.cli", *map(str, arguments)],
        env=environment_with(env or {}),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )


def marked_processes(mark: str) -> Iterator[tuple[int, list[str]]]:
    """Every living process with `mark`, as in `NAME=value`, in its environment: its id and its command."""
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes come and go meanwhile, and most belong to others.
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "cmdline").read_text().split("\0")


class LiveServer:
    """One running server; leaving its context kills whatever is left of it.

    Attributes:
        process: The supervisor.
        port: Where it listens.
        workspace: Its workspace directory.
        scratch: A directory of its own, for its log and workspace.
        key: A valid key.
        tls: The TLS context of its callers.
    """

    def __init__(
        self,
        scratch: Path,
        *arguments: str | Path,
        given_keys: bool = True,
        env: Mapping[str, str] | None = None,
        workspace: Path | None = None,
        port: int = 0,
        ready_within_s: float | None = PROGRAM_S,
        tls: ssl.SSLContext | None = None,
        python: str | Path = sys.executable,
    ) -> None:
        """Start `stoker serve` with these arguments and wait until it is ready.

        Args:
            scratch: An empty directory.
            *arguments: Arguments of `stoker serve` without port and workspace.
            given_keys: Whether the keys are given by the environment, else they are in the workspace.
            env: Further environment.
            workspace: Its workspace; a new one by default.
            port: Where it listens; 0 lets it choose.
            ready_within_s: How long to wait for it; None does not wait, and needs a port.
            tls: The TLS context of its callers; None for plain HTTP.
            python: The interpreter, whose Stoker serves.
        """
        self.tls = tls
        self.scratch, self.workspace = scratch, workspace or scratch / "workspace"
        self.key = PRIMARY
        self._log = scratch / "server.log"
        self._mark = f"{_MARK}={uuid.uuid4()}"
        keys = {"STOKER_PRIMARY_KEY": PRIMARY, "STOKER_SECONDARY_KEY": SECONDARY} if given_keys else {}
        name, _, value = self._mark.partition("=")
        command = [str(python), "-m", "stoker.cli", "serve", *map(str, arguments)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(port), "--workspace", str(self.workspace)],
                env=environment_with({**keys, **(env or {}), name: value}),
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Like a job of an interactive shell: a process group of its own.
                process_group=0,
            )
        self.port = port
        if ready_within_s is None:
            return
        try:
            self.port = wait_until(self._announced_port, "the server is ready", timeout_s=ready_within_s)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if _MEASURED in os.environ:
            self._end()
        self.kill()

    def _announced_port(self) -> int:
        output = self.output()
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{output}"
        ready = re.search(
            r"^  ready .* https?://(?:127\.0\.0\.1|localhost):([0-9]+)/metrics", output, re.MULTILINE
        )
        return int(ready[1]) if ready else 0

    def output(self) -> str:
        """All that its processes have written so far."""
        return self._log.read_text(errors="replace")

    def pids(self) -> list[int]:
        """Every living process of this server, the supervisor included, anywhere in the process tree."""
        return [pid for pid, _ in self._processes()]

    def frontend_pids(self) -> list[int]:
        """Its frontends."""
        return [pid for pid, command in self._processes() if _FRONTEND in command]

    def connections(self) -> list[set[int]]:
        """The ports of the callers whose connections each frontend has taken."""
        return [connections_of(pid, self.port)[self.port] for pid in self.frontend_pids()]

    def device_pids(self) -> list[int]:
        """Its device processes."""
        return [pid for pid, command in self._processes() if _DEVICE in command]

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        return marked_processes(self._mark)

    def computed_s(self) -> float:
        """The processor time of its processes so far."""
        ticks = 0
        for pid in self.pids():
            # One may end meanwhile.
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS_A_SECOND

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the supervisor has ended; returns its exit code."""
        return self.process.wait(timeout_s)

    def _end(self) -> None:
        """Ask the processes of this server to end, and wait for a few seconds."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        deadline_s = time.monotonic() + 5
        while self.pids() and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill every process of this server."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        deadline_s = time.monotonic() + 10
        while (left := self.pids()) and time.monotonic() < deadline_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def connect(self) -> Connection:
        """A new connection."""
        return Connection(self.port, tls=self.tls)

    def get(self, path: str, headers: Sequence[tuple[str, str]] = (), *, key: str | None = None) -> Answer:
        """GET on a connection of its own, without a key unless one is given."""
        keys = [] if key is None else [bearer(key)]
        with self.connect() as connection:
            return connection.ask(request("GET", path, [*keys, *headers]))

    def describe(self, path: str) -> Answer:
        """GET a description of models, which needs a key, on a connection of its own."""
        return self.get(path, key=self.key)

    def score(self, *rows: Sequence[float], path: str = "/score", key: str | None = None) -> Answer:
        """Score rows on a connection of its own."""
        with self.connect() as connection:
            return connection.ask(scoring(path, key or self.key, rows_body(*rows)))

    @property
    def ready(self) -> bool:
        """Whether `/v2/health/ready` answers 200; False too without an answer."""
        try:
            return self.get("/v2/health/ready").status == 200
        except (OSError, AssertionError):
            return False

    def ready_on(self, connections: int) -> bool:
        """Whether `/v2/health/ready` answers 200 on each of so many connections that are open at once.

        Connections that are open at once are spread over all frontends; one after the other could all reach one.
        """
        with contextlib.ExitStack() as opened:
            try:
                connected = [opened.enter_context(self.connect()) for _ in range(connections)]
                message = request("GET", "/v2/health/ready")
                return all(connection.ask(message).status == 200 for connection in connected)
            except (OSError, AssertionError):
                return False

    def metric(self, name: str, **labels: str) -> float:
        """The value of one time series, of version 1 unless told otherwise; 0 for a status not counted yet."""
        if "model" in labels:
            labels.setdefault("version", "1")
        text = self.get("/metrics").body.decode()
        assert f"\n{name}{{" in text, f"there is no metric {name}"
        for line in text.splitlines():
            match = re.fullmatch(r"([a-z_]+)\{(.*)\} (\S+)", line)
            if match and match[1] == name and dict(re.findall(r'(\w+)="([^"]*)"', match[2])) == labels:
                return float(match[3])
        return 0.0
