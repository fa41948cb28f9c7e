"""How much memory this process may use: the machine's, or less where a control group limits it, as in containers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["main_memory"]

_ROOT: Final = Path("/")


class _Version(NamedTuple):
    """Where a version of control groups has its memory controller, and how its files are called."""

    controller: str
    mounted_at: str
    limit: str
    used: str


_VERSIONS: Final = (
    _Version("", "sys/fs/cgroup", "memory.max", "memory.current"),
    _Version("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def main_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Size of the memory and how much of it can be had, in bytes, within the limits of this process's groups.

    Args:
        root: Where the file systems of the kernel are.
    """
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    total, available = (1024 * int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    for limit, used in _limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """The limit of each group that has one, and what is used of it."""
    try:
        membership = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        # A system without control groups.
        return
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        for version in _VERSIONS:
            if version.controller in controllers.split(","):
                yield from _limits_along(root / version.mounted_at, Path(path), version)


def _limits_along(mount: Path, path: Path, version: _Version) -> Iterator[tuple[int, int]]:
    """Those of a group and of all above it, each of which holds for what is in it.

    A container that sees only its own groups has them at the root, whatever its path is called outside.
    """
    for folder in (path, *path.parents):
        group = mount / str(folder).lstrip("/")
        # The word of version 2 for no limit is no number.
        with suppress(OSError, ValueError):
            limit = int((group / version.limit).read_text(encoding="ascii"))
            yield limit, int((group / version.used).read_text(encoding="ascii"))
