"""A Ray cluster of three nodes on this machine, with simulated GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest
from tests.cable import Cable
from tests.live_server import free_port, marked_processes

from stoker_run.processes import descendants, read_stat

pytest.importorskip("ray", reason="Ray is not installed: the extra ray")

_START_S = 120
_ATTEMPTS = 3
_STARTED = "Ray runtime started."


class Cluster:
    """A head without CPUs, and nodes that come and go.

    Attributes:
        address: Of the head, for other nodes and for Ray's own clients.
        dashboard: Of the server of its dashboard.
        token: What the cluster asks for.
    """

    def __init__(
        self, folder: Path, nodes: contextlib.ExitStack, token: str, autoscaling: bool, host: str
    ) -> None:
        port, dashboard_port = free_port(), free_port()
        self.address, self.dashboard = f"{host}:{port}", f"http://127.0.0.1:{dashboard_port}"
        self._host = host
        self.token = token
        self._folder = folder
        head = ["--head", f"--port={port}", "--num-cpus=0", "--num-gpus=0", f"--temp-dir={folder}"]
        if autoscaling:
            head.append(f"--autoscaling-config={_write_autoscaling(folder, port)}")
        nodes.enter_context(_node(folder, host, (), *head, f"--dashboard-port={dashboard_port}"))

    @contextlib.contextmanager
    def node(self, *arguments: str, cable: Cable | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A node more; with `cable` it is at the other end."""
        host, inside = (self._host, ()) if cable is None else (cable.there, cable.inside)
        with _node(self._folder, host, inside, f"--address={self.address}", *arguments) as process:
            yield process

    def kill(self) -> None:
        """Kill all its processes: nothing of it is kept, and a polite end takes half a minute."""
        _kill_marked(f"RAY_AUTH_TOKEN={self.token}")


@contextlib.contextmanager
def started_cluster(*, autoscaling: bool = False, host: str = "127.0.0.1") -> Iterator[Cluster]:
    """A cluster without nodes but its head; with `autoscaling` it starts up to three of one CPU by itself.

    All its processes end with it.

    Args:
        host: The address of this machine for the nodes.
    """
    token = secrets.token_hex(16)
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder,
        contextlib.ExitStack() as nodes,
    ):
        # A token of its own: the one of whoever runs the tests is not looked for, and none is made for him.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", token)
        if autoscaling:
            patch.setenv("RAY_FAKE_CLUSTER", "1")
            patch.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "1")
        nodes.callback(_kill_marked, f"RAY_AUTH_TOKEN={token}")
        yield Cluster(Path(folder), nodes, token, autoscaling, host)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    """A cluster with two nodes of 4 CPUs and 4 GPUs; all end with the tests."""
    node = ("--num-cpus=4", "--num-gpus=4")
    with started_cluster() as made, made.node(*node), made.node(*node):
        yield made
        made.kill()


@pytest.fixture(scope="session")
def cluster(ray_cluster: Cluster) -> str:
    """The address of the cluster."""
    return ray_cluster.address


def kill_node(node: subprocess.Popen[bytes]) -> None:
    """Kill the raylet of a node, as the kernel does where memory runs out; all else of the node is left to itself."""
    (raylet,) = filter(is_living_raylet, descendants(node.pid))
    os.kill(raylet, signal.SIGKILL)


def _write_autoscaling(folder: Path, port: int) -> Path:
    """Write what Ray's autoscaler reads: its nodes are processes of this machine."""
    from ray.util import get_node_ip_address

    # Ray reads these keys without checking that they exist.
    empty = (
        ("file_mounts", "auth"),
        (
            *(
                "cluster_synced_files",
                "rsync_exclude",
                "rsync_filter",
                "initialization_commands",
                "setup_commands",
            ),
            *("head_setup_commands", "worker_setup_commands"),
            *("head_start_ray_commands", "worker_start_ray_commands"),
        ),
    )
    worker = {
        "resources": {"CPU": 1, "object_store_memory": 100_000_000},
        "node_config": {},
        "max_workers": 3,
    }
    content = {
        **{name: {} for name in empty[0]},
        **{name: [] for name in empty[1]},
        "cluster_name": "scaling",
        "max_workers": 3,
        "idle_timeout_minutes": 0.1,
        "file_mounts_sync_continuously": False,
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": f"{get_node_ip_address()}:{port}",
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "worker": worker,
        },
    }
    path = folder / "autoscaling.json"
    path.write_text(json.dumps(content))
    return path


def _kill_marked(mark: str) -> None:
    """Kill the cluster's remaining processes: its autoscaler ends without its nodes."""
    for pid, _ in marked_processes(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _node(
    folder: Path, host: str, inside: Sequence[str], *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A node in the foreground of a process group of its own.

    Ray gives a node 30 s to start, which are too few where all cores are busy, and may hang; so it is tried again.
    """
    for attempt in range(_ATTEMPTS):
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".log", delete=False) as log:
            process = _start(log, host, inside, *arguments)
        try:
            if _is_up(process, Path(log.name)):
                yield process
                return
            assert attempt + 1 < _ATTEMPTS, Path(log.name).read_text()
        finally:
            _end(process)


def _start(log: IO[bytes], host: str, inside: Sequence[str], *arguments: str) -> subprocess.Popen[bytes]:
    ray = Path(sys.executable).with_name("ray")
    listen = f"--dashboard-agent-listen-port={free_port()}"
    command = [
        *inside,
        ray,
        "start",
        "--block",
        f"--node-ip-address={host}",
        listen,
        "--object-store-memory=100000000",
    ]
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen([*command, *arguments], stdout=log, stderr=log, env=environ, process_group=0)


def _is_up(process: subprocess.Popen[bytes], log: Path) -> bool:
    deadline_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        if _STARTED in log.read_text():
            return True
        time.sleep(0.2)
    return False


def is_living_raylet(pid: int) -> bool:
    """Whether a process is a raylet; it may end meanwhile."""
    with contextlib.suppress(OSError):
        name, (state, *_) = read_stat(pid)
        return name == b"raylet" and state != b"Z"
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a node as soon as its raylet has, which signs off from the head.

    The raylet would wait half a minute for what works there, and the rest as long for a raylet that was killed.
    """
    process.terminate()
    for pid in descendants(process.pid):
        if not is_living_raylet(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 30
    while any(map(is_living_raylet, descendants(process.pid))) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
