"""One replica on Ray: an actor that holds the GPUs, and owns the whole server that uses them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import httpx

from stoker.errors import LoadFailed

_AGAIN_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """The configuration of a service's replicas.

    Attributes:
        arguments: Arguments of `stoker serve`, without host and port.
        port: Replica N listens on `port` + N, on any node.
        num_gpus: GPUs that Ray allocates to a replica.
        num_cpus: CPUs that Ray allocates to a replica.
        ready_within_s: Time limit for loading.
        environ: Environment variables of the server: its keys, which are the same for all replicas.
    """

    name: str
    arguments: tuple[str, ...]
    port: int
    num_gpus: float = 0.0
    num_cpus: float = 1.0
    ready_within_s: float = 600.0
    host: str | None = None
    environ: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The state of a replica.

    Attributes:
        state: `ready`, `starting` (or waiting for resources), or `lost`.
        uri: Its scoring URI; empty before it is ready.
        pid: The process id of its actor; the server ends with that process.
        gpus: The GPUs that Ray has allocated to it.
        restarted: Whether Ray has restarted it.
    """

    number: int
    state: str
    uri: str = ""
    node: str = ""
    pid: int = 0
    gpus: tuple[str, ...] = ()
    restarted: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it in JSON types."""
        return dataclasses.asdict(self)


class Replica:
    """The actor, created once its server is ready; if the server ends unexpectedly, it exits and Ray restarts it."""

    def __init__(self, spec: ServiceSpec, number: int) -> None:
        """Start the server on this node, and wait until it is ready."""
        import ray

        context = ray.get_runtime_context()
        self._spec, self._number = spec, number
        self._restarted = bool(context.was_current_actor_reconstructed)
        # The node's address within the cluster; a machine may have several.
        here = context.get_node_id()
        self._node = next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
        self._gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        self._ending = False
        self._folder = folder = Path(tempfile.mkdtemp(prefix=f"stoker-{spec.name}-{number}-"))
        workspace = () if "--workspace" in spec.arguments else ("--workspace", str(folder / "workspace"))
        self._server = ServerProcess(
            (*spec.arguments, *workspace), spec.host or self._node, spec.port + number, folder, spec.environ
        )
        try:
            self._server.wait_until_ready(spec.ready_within_s)
        except LoadFailed:
            self.drain()
            if self._restarted:
                # Ray does not retry an actor whose constructor fails, but restarts one that exits.
                time.sleep(_AGAIN_AFTER_S)
                _end()
            raise
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def status(self) -> ReplicaStatus:
        """Return its state, which is `ready`."""
        uri = f"{self._server.base_uri}/api/v1/service/{self._spec.name}/score"
        return ReplicaStatus(self._number, "ready", uri, self._node, os.getpid(), self._gpus, self._restarted)

    def spec(self) -> ServiceSpec:
        """Return the configuration of its service."""
        return self._spec

    def drain(self) -> int:
        """Stop the server once all requests are answered; returns its exit code."""
        self._ending = True
        code = self._server.drain()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _watch(self) -> None:
        self._server.process.wait()
        if not self._ending:
            # Ray collects the output of its actors.
            sys.stderr.write(f"the server has ended: {self._server.last_lines()}\n")
            shutil.rmtree(self._folder, ignore_errors=True)
            _end()


def _end() -> NoReturn:
    os._exit(1)


_LOG: Final = "server.log"
_LOOK_EVERY_S: Final = 0.1


# The server of a replica, a process.


_PROBE_S: Final = 2.0
_SHOWN_LINES: Final = 20
# The time that a server gives its requests, plus a little for its processes.
_DRAIN_WITHIN_S: Final = 60.0


class ServerProcess:
    """A running server.

    Attributes:
        base_uri: Its root: `http://HOST:PORT`.
    """

    def __init__(
        self, arguments: Sequence[str], host: str, port: int, folder: Path, environ: Mapping[str, str]
    ) -> None:
        """Start the process; it loads its models after that.

        Args:
            arguments: Arguments of `stoker serve`, without host and port.
            host: The address that it listens on.
            folder: The folder for its log.
            environ: Environment variables in addition to those of this process.
        """
        self.base_uri = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._log = folder / _LOG
        where = ["--host", host, "--port", str(port)]
        child = [sys.executable, "-P", "-m", "stoker_cluster.ray.child", str(os.getpid()), *arguments, *where]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                child, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environ}
            )

    def wait_until_ready(self, within_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Wait until the server is ready.

        Raises:
            LoadFailed: It has ended, or was not ready within the time limit; the message has the end of its log.
        """
        deadline_s = clock_s() + within_s
        with httpx.Client(timeout=_PROBE_S, trust_env=False) as client:
            while not self._answers(client):
                if self.process.poll() is not None:
                    raise LoadFailed(
                        f"the server ended with exit code {self.process.returncode}: {self.last_lines()}"
                    )
                if clock_s() > deadline_s:
                    raise LoadFailed(f"the server was not ready within {within_s:g} s: {self.last_lines()}")
                time.sleep(_LOOK_EVERY_S)

    def drain(self) -> int:
        """Let it answer pending requests and exit; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(_DRAIN_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _answers(self, client: httpx.Client) -> bool:
        try:
            return client.get(f"{self.base_uri}/v2/health/ready").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def last_lines(self) -> str:
        """The end of its log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_SHOWN_LINES:])
