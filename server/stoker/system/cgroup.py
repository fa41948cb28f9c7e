"""The control groups of this process, and the CPU cores that it may use: those of the kernel, within their limit.

A container with a limit sees all cores of its machine, but is stopped for the rest of each period once its share is
used up: more threads than its share has cores make it slower, not faster.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, MutableMapping
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["core_count", "cpu_limit", "own_groups", "tell_libraries", "usable_cores"]

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
    limits = [limit for folder in own_groups(root, "cpu") if (limit := _limit(folder)) is not None]
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


def _limit(folder: Path) -> float | None:
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
