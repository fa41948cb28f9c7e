"""The process of a replica's server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx

from stoker.errors import LoadFailed

_LOG: Final = "server.log"
_LOOK_EVERY_S: Final = 0.1
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
