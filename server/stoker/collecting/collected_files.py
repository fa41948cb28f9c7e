"""Files of collected data that several processes write into one folder, with a common size limit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

__all__ = ["make_room", "new_file", "write_all"]


def new_file(path: Path) -> BinaryIO:
    """Create a new file, readable by the owner alone (mode 0600) and unbuffered."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write to an unbuffered file, whose `write` may take only a part at once."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def make_room(oldest_first: Iterable[Path], room_bytes: int, folders: int) -> None:
    """Remove the oldest files until the others fit into a limit.

    Args:
        oldest_first: All files.
        room_bytes: The limit.
        folders: Number of parent folders to remove with a file if they become empty.
    """
    sizes: dict[Path, int] = {}
    for path in oldest_first:
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            sizes[path] = path.stat().st_size
    total_bytes = sum(sizes.values())
    for path, size_bytes in sizes.items():
        if total_bytes <= room_bytes:
            return
        path.unlink(missing_ok=True)
        total_bytes -= size_bytes
        with contextlib.suppress(OSError):
            for parent in path.parents[:folders]:
                parent.rmdir()
