"""The cores and the memory that this process may use: those of the machine, within the limits of its control groups.

A container with a limit sees all cores of its machine, but is stopped for the rest of each period once its share is
used up: more threads than its share has cores make it slower, not faster.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

ONE_BLAS_THREAD: Final = MappingProxyType({"OPENBLAS_NUM_THREADS": "1"})
"""For processes that multiply no matrices: NumPy starts a thread for each core, and each spins for 0.1 s first."""
_ROOT: Final = Path("/")


def usable_cores() -> int:
    """Return the number of cores that this process may use, at least 1."""
    return core_count(len(os.sched_getaffinity(0)), _own_limit())


def limit_library_threads(environ: MutableMapping[str, str]) -> None:
    """Limit the threads of libraries such as NumPy and PyTorch, unless the operator has set a limit in `environ`.

    They count the cores of the machine when they are loaded, in every process.
    """
    cores = usable_cores()
    if cores < len(os.sched_getaffinity(0)):
        environ.setdefault("OMP_NUM_THREADS", str(cores))


@contextmanager
def defaults_set(environ: MutableMapping[str, str], variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables within the context, unless the operator has: child processes that start later do not get them."""
    added = variables.keys() - environ.keys()
    environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del environ[name]


def core_count(cores: int, limit: float | None) -> int:
    """Return the number of whole cores within a limit in CPU seconds per second (None for no limit), at least 1."""
    return max(1, cores if limit is None else min(cores, math.floor(limit)))


def cpu_limit(root: Path) -> float | None:
    """Return the CPU seconds per second that the process's control group may use, None without a limit.

    The limits of the groups around it count too. `root` is where the kernel's file systems are.
    """
    limits = [limit for folder in own_groups(root, "cpu") if (limit := _cpu_limit_of(folder)) is not None]
    return min(limits, default=None)


@cache
def _own_limit() -> float | None:
    # Cached: the numbers of processes and threads depend on it, and must not change while the server runs.
    return cpu_limit(_ROOT)


def own_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of the groups around it, in both versions.

    A container that sees only its own groups has them at the root, whatever their path outside: so some of the
    folders may not exist.

    Args:
        controller: `cpu` or `memory`.
    """
    try:
        membership = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        # A system without control groups.
        return
    mounts = root / "sys/fs/cgroup"
    for line in membership.splitlines():
        _, controllers, path = (*line.split(":", 2), "?", "")[:3]
        if controllers == "":
            mount = mounts
        elif controller in controllers.split(","):
            mount = next((m for m in (mounts / controllers, mounts / controller) if m.is_dir()), mounts)
        else:
            continue
        own = Path(path.strip("/"))
        for group in (own, *own.parents):
            yield mount / group


def _cpu_limit_of(folder: Path) -> float | None:
    """Return the limit of one group; None without."""
    try:
        if (file := folder / "cpu.max").is_file():
            quota, period = file.read_text(encoding="ascii").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
        # Without a limit it is "max" or -1.
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


# The files with limit and usage in both versions of control groups.
_MEMORY_FILES: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def main_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Return the size of the memory and how much is available, in bytes, within the limits of this process's groups.

    `root` is where the kernel's file systems are.
    """
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    total, available = (1024 * int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    for limit, used in _memory_limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def private_memory(pid: int | None = None) -> int:
    """Return the bytes of memory that a process alone uses and no file holds; None for this process.

    Raises:
        OSError: There is no such process.
    """
    path = Path("/proc", "self" if pid is None else str(pid), "status")
    status = path.read_text(encoding="ascii", errors="replace")
    # A process that has ended and was not waited for has no such line.
    anonymous = next((line for line in status.splitlines() if line.startswith("RssAnon:")), "RssAnon: 0 kB")
    return 1024 * int(anonymous.split()[1])


def trim_heap() -> None:
    """Return freed memory to the system. Takes milliseconds for each gigabyte, without the interpreter lock.

    glibc keeps what lies between blocks in use, and blocks below its mmap threshold that threads have freed.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    # Other C libraries keep less, and have no such function.
    return getattr(ctypes.CDLL(None), "malloc_trim", None) or (lambda _: None)


def require_memory(size_bytes: int, subject: str, root: Path = _ROOT) -> None:
    """Refuse an allocation that does not fit into memory, before the kernel kills the process for it.

    Args:
        subject: The beginning of the message's sentence, such as `3 rows of x (8 numbers)`.

    Raises:
        MemoryError: It is more than available; the message has both sizes.
    """
    _, available = main_memory(root)
    if size_bytes > available:
        raise MemoryError(
            f"{subject} would take {_gib(size_bytes)} of memory, of which {_gib(available)} can be had"
        )


class MemoryKills:
    """Tells whether the kernel killed a process because memory ran out, or another sender did.

    The kernel counts the kills in a control group or in the machine, but not whose they were: each explains one end
    by SIGKILL. `count` returns the number of kills; by default it asks the kernel.
    """

    def __init__(self, count: Callable[[], int] | None = None) -> None:
        # Imported here: device processes import this module and count no kills.
        from stoker_base.memory import kills_for_memory

        self._count = count or kills_for_memory
        self._explained = self._count()

    def explain(self, exit_status: int | None) -> bool:
        """Return whether a process with this exit status, negative for a signal, was killed for lack of memory."""
        if exit_status != -signal.SIGKILL or self._count() <= self._explained:
            return False
        self._explained += 1
        return True

    def describe(self, exit_status: int) -> str:
        """Return how a process ended: its exit status, or that the kernel killed it."""
        return (
            "was killed by the kernel, out of memory"
            if self.explain(exit_status)
            else f"ended with status {exit_status}"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):,.1f} GiB"


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and usage of each group that has a limit."""
    for group in own_groups(root, "memory"):
        for limit, used in _MEMORY_FILES:
            # Without a limit, version 2 has a word instead of a number.
            with suppress(OSError, ValueError):
                limit_bytes = int((group / limit).read_text(encoding="ascii"))
                yield limit_bytes, int((group / used).read_text(encoding="ascii"))
