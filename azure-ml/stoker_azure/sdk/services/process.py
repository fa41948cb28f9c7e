"""The process of a deployed service, which outlives the code that started it, and requests to it.

The process holds a lock on a file in its folder, and the kernel releases the lock when the process ends. So whether
it runs is never guessed from a process number, which is used only while the lock is held.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import httpx

from stoker.system.durable import lock_file

State = Literal["Transitioning", "Healthy", "Unhealthy", "Failed"]
"""Azure's words for: starts; can score; could score, and cannot now; ended before it could score."""

LOG: Final = "server.log"
_RUNNING: Final = "running"
_READY_ONCE: Final = "ready"
_PROBE_TIMEOUT_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.02
# The server's time for its requests to end, and a little for its processes.
_END_WITHIN_S: Final = 45.0

# Processes that this one has started, so that they do not stay as zombies; the others are nobody's children.
_started: Final[dict[int, subprocess.Popen[bytes]]] = {}


def start(folder: Path, command: Sequence[str], environ: Mapping[str, str], head: Sequence[str] = ()) -> int:
    """Start a process in its own session, and return its number.

    Args:
        folder: Folder for the log and the lock; each start has its own.
    """
    lock = lock_file(folder / _RUNNING)
    try:
        with (folder / LOG).open("wb") as log:
            log.writelines(f"{line}\n".encode() for line in head)
            log.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                start_new_session=True,
                # It has the lock as long as it lives; processes that it starts do not inherit it.
                pass_fds=(lock,),
            )
    finally:
        os.close(lock)
    _started[process.pid] = process
    return process.pid


def is_running(folder: Path) -> bool:
    """Whether the process that was started in a folder runs."""
    try:
        # Shared, so that two who look do not see each other.
        os.close(lock_file(folder / _RUNNING, shared=True, wait=False))
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def state(folder: Path, base_uri: str, service: str) -> State:
    """Return the state of the service whose process was started in a folder."""
    ready_once = folder / _READY_ONCE
    if is_running(folder):
        if _is_ready(base_uri, service):
            ready_once.touch()
            return "Healthy"
        return "Unhealthy" if ready_once.exists() else "Transitioning"
    return "Unhealthy" if ready_once.exists() else "Failed"


def _is_ready(base_uri: str, service: str) -> bool:
    """Whether a server answers, serves this service, and can score."""
    paths = (f"/api/v1/service/{service}/", "/v2/health/ready")
    with plain_http(_PROBE_TIMEOUT_S) as client:
        try:
            return all(client.get(base_uri + path).status_code == httpx.codes.OK for path in paths)
        except httpx.HTTPError:
            return False


def stop(folder: Path, pid: int) -> None:
    """Ask the process to end after its pending requests; kill it if it does not."""
    for number, within_s in ((signal.SIGINT, _END_WITHIN_S), (signal.SIGKILL, _END_WITHIN_S)):
        if not is_running(folder):
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline_s = time.monotonic() + within_s
        while is_running(folder) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)
    if child := _started.pop(pid, None):
        child.wait()


def log_tail(folder: Path, lines: int) -> str:
    """Return the last lines of the log."""
    try:
        text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "".join(text.splitlines(keepends=True)[-lines:]) if lines > 0 else ""


def plain_http(timeout_s: float | None) -> httpx.Client:
    """Return a client for plain HTTP without proxies.

    Args:
        timeout_s: Seconds that the network may be silent; None waits as long as the service does.
    """
    # There are no certificates to verify, and loading those of the authorities costs more than the request.
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=False)  # noqa: S501


class Caller:
    """Posts bodies to one service. It fetches a key or token once, and again when the service refuses it.

    Args:
        fetch_bearer: Returns a key or token; None if the service takes neither.
        has_started: Waits while the service starts, and returns whether it can score.
    """

    def __init__(
        self,
        find_uri: Callable[[], str],
        fetch_bearer: Callable[[], str | None],
        has_started: Callable[[], bool],
    ) -> None:
        self._find_uri = find_uri
        self._fetch_bearer = fetch_bearer
        self._has_started = has_started
        self._bearer: str | None = None

    def post(self, body: str | bytes) -> httpx.Response:
        """Post a JSON body, and return the response, whatever its status.

        Raises:
            ConnectionError: The service cannot be reached and is not starting.
        """
        try:
            # A request may take as long as the server allows.
            with plain_http(None) as client:
                try:
                    answer = self._post(client, body)
                except httpx.ConnectError:
                    if not self._has_started():
                        raise
                    answer = self._post(client, body)
                if answer.status_code == httpx.codes.UNAUTHORIZED:
                    self._bearer = None
                    answer = self._post(client, body)
                return answer
        except httpx.HTTPError as error:
            raise ConnectionError(str(error)) from error

    def _post(self, client: httpx.Client, body: str | bytes) -> httpx.Response:
        if self._bearer is None:
            self._bearer = self._fetch_bearer()
        headers = {"Content-Type": "application/json"}
        if self._bearer is not None:
            headers["Authorization"] = f"Bearer {self._bearer}"
        return client.post(self._find_uri(), content=body, headers=headers)
