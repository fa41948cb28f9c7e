"""A Ray cluster of three nodes on this machine, with GPUs that it is told of."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.live_server import free_port, wait_until

pytest.importorskip("ray", reason="Ray is not installed: the extra ray")

_WAIT_S = 240
_ATTEMPTS = 3
_STARTED = "Ray runtime started."


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a head without CPUs and two nodes of 4 CPUs and 4 GPUs; all end with the tests."""
    # A token of its own: the one of whoever runs the tests is not looked for, and none is made for him.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
        yield from _cluster()


def _cluster() -> Iterator[str]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    head = ["--head", f"--port={port}", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false"]
    with contextlib.ExitStack() as nodes, tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        nodes.enter_context(_node(Path(folder), *head, f"--temp-dir={folder}"))
        for _ in range(2):
            nodes.enter_context(_node(Path(folder), f"--address={address}", "--num-cpus=4", "--num-gpus=4"))
        yield address
        # Before its folder goes.
        nodes.close()


@contextlib.contextmanager
def _node(folder: Path, *arguments: str) -> Iterator[None]:
    """A node in the foreground of a process group of its own.

    Ray gives a node 30 s to start, which are too few where all cores are busy; so it is tried again.
    """
    for attempt in range(_ATTEMPTS):
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".log", delete=False) as log:
            process = _start(log, *arguments)
        try:
            if _is_up(process, Path(log.name)):
                yield
                return
            assert attempt + 1 < _ATTEMPTS, Path(log.name).read_text()
        finally:
            _end(process)


def _start(log: IO[bytes], *arguments: str) -> subprocess.Popen[bytes]:
    ray = Path(sys.executable).with_name("ray")
    listen = f"--dashboard-agent-listen-port={free_port()}"
    command = [
        ray,
        "start",
        "--block",
        "--node-ip-address=127.0.0.1",
        listen,
        "--object-store-memory=100000000",
    ]
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen([*command, *arguments], stdout=log, stderr=log, env=environ, process_group=0)


def _is_up(process: subprocess.Popen[bytes], log: Path) -> bool:
    def started_or_ended() -> bool:
        return process.poll() is not None or _STARTED in log.read_text()

    wait_until(started_or_ended, "a node of Ray starts", timeout_s=_WAIT_S, every_s=0.2)
    return process.poll() is None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
