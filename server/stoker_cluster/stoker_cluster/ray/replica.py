"""One replica on Ray: an actor that holds the GPUs, and owns the whole server that uses them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from stoker.errors import LoadFailed
from stoker_cluster.ray.server_process import ServerProcess

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


class ReplicaStatus(Struct, frozen=True):
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
        return msgspec.structs.asdict(self)


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
