"""A worker: runs attempts on a node of a cluster, one after the other, as it finds them in a queue.

Its folder and the queue are shared with the runners. Whoever renames or removes a file first has decided:

QUEUE/next, QUEUE/*.next   runner: `{"attempt": FOLDER}`, to be run, in the order of the names; it may remove it again
FOLDER/worker.json         worker, once; what the machine has
FOLDER/current             the worker has renamed what it found in the queue, and runs it

A worker ends with the daemon of its node, and all processes of its attempt with it: what the scheduler of the cluster
believes to be dead is dead. Where the daemon was the first to end, `lost.json` in the attempt's folder says so.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Optional

from stoker_base.trees import remove_tree
from stoker_run import agent, archive, observing, processes
from stoker_run.attempt import Refused, attempt_key, read_start
from stoker_run.json_files import read_json, replace_json
from stoker_run.ranks import free_ports

CURRENT = "current"
"""The file of a worker's folder with the attempt that it runs."""
LOST = "lost.json"
"""The file of an attempt that has ended without a report, written when none of its processes is left."""

_POLL_S = 0.05
_HAS_ANOTHER = 3
"""Exit status of an agent whose attempt another one runs, as those of its command."""


def take_next(queue: Path, folder: Path) -> bool:
    """Move the first attempt of a queue into a worker's folder; return whether there was one."""
    # Listing a folder asks its server; a look at a single name may be answered from an old answer.
    for name in sorted(path.name for path in queue.iterdir()):
        if name == "next" or name.endswith(".next"):
            with contextlib.suppress(OSError):
                (queue / name).rename(folder / CURRENT)
                return True
    return False


class Worker:
    """One worker.

    Args:
        folder: Its folder.
        queue: Where it finds attempts.
        idle_s: How long it waits for another attempt.
        daemon: The process id of the node's daemon; None if there is none.
        host: The address of this node for others.
        peers: How many processes of an attempt others have to reach here; such a worker is that attempt's alone.
    """

    def __init__(
        self, folder: Path, queue: Path, idle_s: float, daemon: Optional[int], host: str = "", peers: int = 0
    ) -> None:
        self._folder = folder
        self._queue = queue
        self._idle_s = idle_s
        self._daemon = daemon
        self._peers = [f"{host}:{port}" for port in free_ports(peers)]
        self._daemon_began = _began(daemon) if daemon is not None else None
        self._agent = 0
        self._has_lost_parent = False
        self._is_stopped = False

    def run(self) -> None:
        """Run attempts until there has been none for some time, or the node's daemon has ended.

        Raises:
            OSError: The folder cannot be written to.
        """
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_lost_parent)
        processes.signal_with_parent(signal.SIGUSR1)
        facts = dict(observing.check(), pid=os.getpid(), peers=self._peers)
        replace_json(self._folder / "worker.json", facts)
        # Read here, they are in the memory of each agent.
        archive.read_entries()
        since = time.monotonic()
        while self._has_daemon() and not self._is_stopped:
            if take_next(self._queue, self._folder):
                self._run_attempt()
                since = time.monotonic()
                if self._peers:
                    break
            elif not self._peers and time.monotonic() - since > self._idle_s:
                break
            else:
                time.sleep(_POLL_S)
        remove_tree(self._folder, ignore_errors=True)

    def _has_daemon(self) -> bool:
        if self._has_lost_parent:
            return False
        return self._daemon is None or _began(self._daemon) == self._daemon_began

    def _run_attempt(self) -> None:
        current = read_json(self._folder / CURRENT)
        attempt = Path(current["attempt"]) if isinstance(current, dict) else self._folder
        print(f"{attempt}", flush=True)
        # Blocked, for the end of the agent is to end the wait for it, and not a sleep.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        self._agent = os.fork()
        if self._agent == 0:
            _run_as_agent(attempt)
        reason = "its agent has ended without a report"
        while True:
            pid, status = os.waitpid(self._agent, os.WNOHANG)
            if pid:
                break
            if not self._has_daemon():
                reason = "the daemon of its node has ended"
                processes.kill([self._agent], signal.SIGKILL)
                os.waitpid(self._agent, 0)
                break
            signal.sigtimedwait({signal.SIGCHLD}, _POLL_S)
        self._agent = 0
        if not (attempt / "exit.json").exists() and status != _HAS_ANOTHER << 8:
            processes.sweep(attempt_key(attempt))
            with contextlib.suppress(OSError):
                replace_json(attempt / LOST, {"reason": reason})
        with contextlib.suppress(OSError):
            (self._folder / CURRENT).unlink()

    def _on_stop(self, _number: int, _frame: Optional[FrameType]) -> None:
        """Have the agent end the script, and then end the worker."""
        if self._agent:
            processes.kill([self._agent], signal.SIGTERM)
        self._is_stopped = True

    def _on_lost_parent(self, _number: int, _frame: Optional[FrameType]) -> None:
        self._has_lost_parent = True


def _run_as_agent(attempt: Path) -> None:
    """Be the agent of an attempt. Never returns to the worker's code."""
    worker = os.getppid()
    try:
        processes.signal_with_parent(signal.SIGKILL)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != worker:
            os._exit(1)
        log = os.open(str(attempt / "agent.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        try:
            read_start(attempt)
            agent.run(attempt, agent.lock(attempt))
        except agent.AlreadyStarted:
            os._exit(_HAS_ANOTHER)
        except Refused as error:
            os.write(2, f"{error}\n".encode("utf-8", "replace"))
    except BaseException:  # noqa: BLE001  # what ends a fork must not go on as the worker would
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def daemon_of(name: str) -> Optional[int]:
    """Return the process id of the nearest process of this name among this one's ancestors; None if there is none."""
    pid = os.getppid()
    while pid > 1:
        try:
            found, fields = processes.read_stat(pid)
        except OSError:
            return None
        if found == name.encode("ascii"):
            return pid
        pid = int(fields[1])
    return None


def _began(pid: int) -> Optional[str]:
    """When a process began, in the kernel's own count; None if it has ended."""
    try:
        _, fields = processes.read_stat(pid)
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
