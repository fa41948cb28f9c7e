"""Control groups below one of the test's own name, in version 1 and in version 2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["make", "remove"]

_ROOT: Final = Path("/sys/fs/cgroup")


def _hierarchies() -> list[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink()]


def make(name: str) -> None:
    """Make a group in each hierarchy."""
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir()


def remove(name: str) -> bool:
    """Remove the group from each hierarchy, with all below; returns whether that was possible."""
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                return False
    return True
