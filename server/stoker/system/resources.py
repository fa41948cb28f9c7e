"""The cores and the memory that this process may use: those of the machine, within the limits of its control groups.

A container with a limit sees all cores of its machine, but is stopped for the rest of each period once its share is
used up: more threads than its share has cores make it slower, not faster.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

__all__ = [
    "MemoryKills",
    "core_count",
    "cpu_limit",
    "main_memory",
    "own_groups",
    "require_memory",
    "tell_libraries",
    "usable_cores",
]

_ROOT: Final = Path("/")


def usable_cores() -> int:
    """Cores that this process may use, at least 1."""
    return core_count(len(os.sched_getaffinity(0)), _own_limit())


def tell_libraries(environ: MutableMapping[str, str]) -> None:
    """Have libraries with threads of their own, such as NumPy and PyTorch, heed the limit too.

    They count the cores of the machine when they are loaded, in every process anew. What an operator has said stays.

    Args:
        environ: The environment that they will read.
    """
    cores = usable_cores()
    if cores < len(os.sched_getaffinity(0)):
        environ.setdefault("OMP_NUM_THREADS", str(cores))


def core_count(cores: int, limit: float | None) -> int:
    """Whole cores within a limit, at least 1.

    Args:
        cores: Cores that the kernel gives.
        limit: CPU time a second that the container may use; None is without limit.
    """
    return max(1, cores if limit is None else min(cores, math.floor(limit)))


def cpu_limit(root: Path) -> float | None:
    """Return the CPU seconds a second that the process's control group may use, None without limit.

    The limits of the groups around it hold too.

    Args:
        root: Where the file systems of the kernel are.
    """
    limits = [limit for folder in own_groups(root, "cpu") if (limit := _cpu_limit_of(folder)) is not None]
    return min(limits, default=None)


@cache
def _own_limit() -> float | None:
    # Once: the numbers of processes and threads that follow from it must not change while the server runs.
    return cpu_limit(_ROOT)


def own_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group, and of those around it, in both versions of control groups.

    A container that sees only its own groups has them at the root, whatever its path is called outside: folders that
    are not there are among these.

    Args:
        root: Where the file systems of the kernel are.
        controller: What is looked for: `cpu`, `memory`.
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
    """What a group may use itself."""
    try:
        if (file := folder / "cpu.max").is_file():
            quota, period = file.read_text(encoding="ascii").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
        # Both "max" and -1 are none.
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


# The limit and what is used of it, as the two versions of control groups call their files.
_MEMORY_FILES: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def main_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Size of the memory and how much of it can be had, in bytes, within the limits of this process's groups.

    Args:
        root: Where the file systems of the kernel are.
    """
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    total, available = (1024 * int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    for limit, used in _memory_limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def require_memory(size_bytes: int, what: str, root: Path = _ROOT) -> None:
    """Refuse what would not fit into memory before it is made: whoever only tries may be killed by the kernel.

    Args:
        size_bytes: How much is to be made.
        what: What it is, as the beginning of a sentence: `two rows of x (8 numbers)`.
        root: As for `main_memory`.

    Raises:
        MemoryError: It is more than can be had; the message says both sizes.
    """
    _, available = main_memory(root)
    if size_bytes > available:
        raise MemoryError(
            f"{what} would take {_gib(size_bytes)} of memory, of which {_gib(available)} can be had"
        )


class MemoryKills:
    """Tells processes that the kernel has killed for want of memory from those that somebody else has killed.

    The kernel counts the kills of a control group, or of the machine, and does not say whose they were: each explains
    one end by SIGKILL.
    """

    def __init__(self, count: Callable[[], int] | None = None) -> None:
        """Begin with those that have been counted so far, which explain nothing.

        Args:
            count: How many there have been; by default asks the kernel.
        """
        # Not above: device processes import this module, and the environments of scripts need not have that one.
        from stoker_run.memory import kills_for_memory

        self._count = count or kills_for_memory
        self._explained = self._count()

    def explain(self, exit_status: int | None) -> bool:
        """Whether a process with this exit status, negative for a signal, was killed for want of memory."""
        if exit_status != -signal.SIGKILL or self._count() <= self._explained:
            return False
        self._explained += 1
        return True

    def describe(self, exit_status: int) -> str:
        """What to say of how a process ended: its exit status, or that the kernel has killed it."""
        return (
            "was killed by the kernel, out of memory"
            if self.explain(exit_status)
            else f"ended with status {exit_status}"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):,.1f} GiB"


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """The limit of each group that has one, and what is used of it."""
    for group in own_groups(root, "memory"):
        for limit, used in _MEMORY_FILES:
            # The word of version 2 for no limit is no number.
            with suppress(OSError, ValueError):
                limit_bytes = int((group / limit).read_text(encoding="ascii"))
                yield limit_bytes, int((group / used).read_text(encoding="ascii"))
