"""Memory: how much there is, how much was used, and whether the kernel has killed for want of it."""

import os
import resource
from pathlib import Path
from typing import Callable, Optional

_NO_LIMIT = 1 << 60

Read = Callable[[str], Optional[str]]


def _text(path: str) -> Optional[str]:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None


def kills_for_memory(read: Read = _text) -> int:
    """How many processes the kernel has killed for want of memory: of our control group, else of the machine."""
    group = _group(read, "")
    counted = _field(read(f"/sys/fs/cgroup{group}/memory.events"), "oom_kill") if group else None
    if counted is None:
        group = _group(read, "memory")
        path = f"/sys/fs/cgroup/memory{group}/memory.oom_control"
        counted = _field(read(path), "oom_kill") if group else None
    if counted is None:
        counted = _field(read("/proc/vmstat"), "oom_kill")
    return counted or 0


def limit_bytes(read: Read = _text) -> int:
    """How much memory a process may use: the least of the control group's limit, its own and what there is."""
    found = [total_bytes(read)]
    for path in (
        "/sys/fs/cgroup{}/memory.max".format(_group(read, "") or ""),
        "/sys/fs/cgroup/memory{}/memory.limit_in_bytes".format(_group(read, "memory") or ""),
    ):
        text = (read(path) or "").strip()
        if text.isdigit():
            found.append(int(text))
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        found.append(soft)
    return min(one for one in found if 0 < one < _NO_LIMIT)


def total_bytes(read: Read = _text) -> int:
    """How much memory the machine has."""
    found = _field((read("/proc/meminfo") or "").replace(":", " "), "MemTotal")
    return found * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group(read: Read, controller: str) -> Optional[str]:
    """Our control group: of the second version for the empty name."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return "" if path == "/" else path
    return None


def _field(text: Optional[str], name: str) -> Optional[int]:
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
