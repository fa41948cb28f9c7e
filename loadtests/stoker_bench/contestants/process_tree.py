"""Processes of a server: which they are, their CPU time and memory, and their end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from msgspec import Struct

KILL_TIMEOUT_S, KILL_POLL_S = 5.0, 0.005


class Memory(Struct, frozen=True):
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


def tree_behind(uri: str) -> ProcessTree | None:
    """Return the process tree of the server at a URI; None if it is not on this machine."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    roots = serving_roots(parts.port or 80) if local else []
    return ProcessTree(*roots) if roots else None
