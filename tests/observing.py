"""Looks at what other processes change meanwhile; what is gone before it is looked at counts as gone."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from stoker_base.trees import files_below

__all__ = ["connections_of", "look_at_files", "state_of"]

_CONNECTED: Final = "01"
_Seen = TypeVar("_Seen")


def look_at_files(folder: Path, look: Callable[[Path], _Seen]) -> dict[Path, _Seen]:
    """Call `look` for each regular file below a folder; returns its answers."""
    seen = {}
    for path in files_below(folder):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                seen[path] = look(path)
    return seen


def state_of(pid: int | str) -> str:
    """The kernel's letter for the state of a process; "X" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return "X"


def connections_of(pid: int, *ports: int) -> dict[int, set[int]]:
    """The ports of the callers whose connections a process has taken, by the port that they came to.

    The kernel's table is no snapshot: where many connections come and go meanwhile it may leave one out.
    """
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(descriptor)))  # noqa: PTH115  # it is no path
    held: dict[int, set[int]] = {port: set() for port in ports}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            here, there = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
            if here in held and fields[9] in inodes and fields[3] == _CONNECTED:
                held[here].add(there)
    return held
