"""What a server costs: CPU time and memory of all of its processes, read from Linux's /proc.

Fields of /proc/PID/stat, smaps_rollup and net/tcp are those of proc(5).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Memory", "ProcessTree", "listening_processes", "machine_busy_s", "serving_roots"]

PROC = Path("/proc")
LISTEN = "0A"
KILL_TIMEOUT_S, KILL_POLL_S = 5.0, 0.005


@dataclass(frozen=True)
class _Stat:
    """The part of /proc/PID/stat that matters here."""

    state: str
    parent: int
    session: int
    started: int
    """When it started, in clock ticks since boot: with the pid, a process's identity."""
    ticks: int
    """User and system time of the process and of its reaped children, in clock ticks."""


@dataclass(frozen=True)
class Memory:
    """Memory of one process or a sum over several."""

    pss_bytes: int
    """Proportional set size: a page shared by n processes counts 1/n in each."""
    rss_bytes: int

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.pss_bytes + other.pss_bytes, self.rss_bytes + other.rss_bytes)


class ProcessTree:
    """One or more root processes with all of their descendants, and whoever shares the roots' sessions.

    A server that this package starts leads a session of its own, so that children which outlived their
    parent are still found.
    """

    def __init__(self, *roots: int, proc: Path = PROC) -> None:
        self.roots = roots
        self._proc = proc

    def pids(self) -> list[int]:
        """Return the living processes of the tree, zombies included, in ascending order."""
        return sorted(self._stats())

    def identities(self) -> frozenset[tuple[int, int]]:
        """Return (pid, start time) of each process of the tree."""
        return frozenset((pid, stat.started) for pid, stat in self._stats().items())

    def kill(self, earlier: frozenset[tuple[int, int]] = frozenset()) -> None:
        """SIGKILL the tree's processes, and those of `earlier` that live on outside it; await their end."""
        doomed = self.identities() | earlier
        for pid, _ in doomed & self._running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        give_up_s = time.monotonic() + KILL_TIMEOUT_S
        while doomed & self._running() and time.monotonic() < give_up_s:
            time.sleep(KILL_POLL_S)

    def _running(self) -> set[tuple[int, int]]:
        """Return the identities of all of the machine's processes that are not dead or zombies."""
        stats = _all_stats(self._proc)
        return {(pid, stat.started) for pid, stat in stats.items() if stat.state not in "ZX"}

    def cpu_s(self) -> float:
        """Return the CPU seconds that the tree has used; meaningful as a difference.

        Time of children that ended and were waited for is in it, so a process that ends between two
        readings loses nothing.
        """
        return sum(stat.ticks for stat in self._stats().values()) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> Memory:
        """Return the summed memory of all processes.

        Raises:
            PermissionError: If a process belongs to another user.
        """
        total = Memory(0, 0)
        for pid in self.pids():
            total += self.memory_of(pid)
        return total

    def named(self, command_part: str) -> list[int]:
        """Return the processes whose command line contains `command_part`."""
        return [pid for pid in self.pids() if command_part in _command_line(self._proc, pid)]

    def maps(self, pid: int, library_part: str) -> bool:
        """Tell whether the process has mapped a file with `library_part` in its name."""
        try:
            lines = (self._proc / str(pid) / "maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return any(library_part in line.rpartition("/")[2] for line in lines)

    def memory_of(self, pid: int) -> Memory:
        """Return the memory of one process; zero once it has ended."""
        try:
            rollup = (self._proc / str(pid) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return Memory(0, 0)
        sizes = {}
        for line in rollup.splitlines()[1:]:
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0]) * 1024
        return Memory(sizes.get("Pss", 0), sizes.get("Rss", 0))

    def _stats(self) -> dict[int, _Stat]:
        every = _all_stats(self._proc)
        members = {pid for pid, stat in every.items() if pid in self.roots or stat.session in self.roots}
        while True:
            children = {pid for pid, stat in every.items() if stat.parent in members} - members
            if not children:
                return {pid: every[pid] for pid in members}
            members |= children


def machine_busy_s(proc: Path = PROC) -> float:
    """Return the CPU seconds that all processes of the machine have used, stolen time included."""
    fields = (proc / "stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, interrupts, soft_interrupts, stolen = map(int, fields[1:9])
    ticks = user + nice + system + interrupts + soft_interrupts + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def _all_stats(proc: Path) -> dict[int, _Stat]:
    stats = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The command name stands in parentheses and may hold anything, so fields count from the last one.
            fields = line.rpartition(")")[2].split()
            ticks = sum(int(value) for value in fields[11:15])
            stats[int(folder.name)] = _Stat(fields[0], int(fields[1]), int(fields[3]), int(fields[19]), ticks)
    return stats


def _command_line(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def listening_processes(port: int, proc: Path = PROC) -> list[int]:
    """Return the processes of this machine that hold a socket listening on the TCP port."""
    sockets = set()
    for table in ("net/tcp", "net/tcp6"):
        if not (proc / table).exists():
            continue
        for line in (proc / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    return sorted(pid for pid in _all_stats(proc) if sockets & _open_files(proc, pid))


def _open_files(proc: Path, pid: int) -> set[str]:
    targets = set()
    try:
        for link in (proc / str(pid) / "fd").iterdir():
            try:
                targets.add(str(link.readlink()))
            except FileNotFoundError:
                continue
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    return targets


def serving_roots(port: int, proc: Path = PROC) -> list[int]:
    """Return the processes at the top of the server that listens on the port.

    From a listening process this climbs to its `stoker serve`, so that the device processes are in the tree.
    """
    stats = _all_stats(proc)
    roots = set()
    for pid in listening_processes(port, proc):
        top = pid
        while (parent := stats[top].parent) in stats and _is_stoker_serve(_command_line(proc, parent)):
            top = parent
        roots.add(top)
    return sorted(root for root in roots if stats[root].parent not in roots)


def _is_stoker_serve(command_line: str) -> bool:
    return "stoker" in command_line and " serve" in command_line
