"""One replica on Ray: an actor that holds the GPUs, and owns the whole server that uses them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from stoker.errors import LoadFailed
from stoker.ray.server_process import ServerProcess

__all__ = ["Replica", "ServiceSpec", "Standing"]

_AGAIN_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What each replica of a service is to be.

    Attributes:
        name: The service.
        arguments: Arguments of `stoker serve`, without host and port.
        port: The replica number N listens on `port` + N, wherever it is.
        num_gpus: GPUs that Ray is to give it.
        num_cpus: CPUs that Ray is to count for it.
        ready_within_s: How long loading may take.
        host: Where it listens; None for the address of its node.
        environ: Variables of the server: its keys, which are the same for all.
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
class Standing:
    """How a replica stands.

    Attributes:
        number: Which one it is.
        state: `ready`, `starting` (or waiting for resources), or `lost`.
        uri: Where it scores; empty before it is ready.
        node: The node that it is on.
        pid: The process of its actor there; its server ends with it.
        gpus: The GPUs that Ray has given it.
        restarted: Whether Ray has started it again.
    """

    number: int
    state: str
    uri: str = ""
    node: str = ""
    pid: int = 0
    gpus: tuple[str, ...] = ()
    restarted: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return dataclasses.asdict(self)


class Replica:
    """The actor. It is made when its server is ready; when that ends unasked, it ends too, and Ray makes it anew."""

    def __init__(self, spec: ServiceSpec, number: int) -> None:
        """Start the server on this node, and wait for it.

        Args:
            spec: The service.
            number: Which replica of it this is.
        """
        import ray

        context = ray.get_runtime_context()
        self._spec, self._number = spec, number
        self._restarted = bool(context.was_current_actor_reconstructed)
        # The address by which the cluster knows the node; a machine may have others.
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
                # An actor whose making fails is not made again; one that ends is.
                time.sleep(_AGAIN_AFTER_S)
                _end()
            raise
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def standing(self) -> Standing:
        """How it stands, which is ready."""
        uri = f"{self._server.base_uri}/api/v1/service/{self._spec.name}/score"
        return Standing(self._number, "ready", uri, self._node, os.getpid(), self._gpus, self._restarted)

    def spec(self) -> ServiceSpec:
        """The service that it is a replica of."""
        return self._spec

    def drain(self) -> int:
        """End the server once it has answered what it was asked; returns its exit code."""
        self._ending = True
        code = self._server.drain()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _watch(self) -> None:
        self._server.process.wait()
        if not self._ending:
            # Ray keeps what its actors write.
            sys.stderr.write(f"the server has ended: {self._server.last_lines()}\n")
            shutil.rmtree(self._folder, ignore_errors=True)
            _end()


def _end() -> NoReturn:
    os._exit(1)
