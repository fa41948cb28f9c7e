"""How much memory this process may use, and what the kernel kills for want of it.

It is the machine's, or less where a control group limits it, as in containers.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.system.cgroup import own_groups

__all__ = ["MemoryKills", "main_memory", "require_memory"]

_ROOT: Final = Path("/")
# The limit and what is used of it, as the two versions of control groups call their files.
_FILES: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


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


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """The limit of each group that has one, and what is used of it."""
    for group in own_groups(root, "memory"):
        for limit, used in _FILES:
            # The word of version 2 for no limit is no number.
            with suppress(OSError, ValueError):
                limit_bytes = int((group / limit).read_text(encoding="ascii"))
                yield limit_bytes, int((group / used).read_text(encoding="ascii"))
