"""Environments that were built on this machine for runs: which nobody has used for long, and their removal."""

import os
import shutil
import time
from pathlib import Path
from typing import Any, List, Set

from stoker_run.luggage import Luggage

__all__ = ["prune"]

_MANIFEST = "manifest.json"


def prune(folder: Path, unused_s: float, remove: bool) -> List[List[Any]]:
    """Remove the environments that no run has been given for a time, and in which no process is.

    Args:
        folder: Where everything of runs is on this machine.
        unused_s: The time in seconds; the machine's own clock counts.
        remove: Whether they are removed, or only told of.

    Returns:
        `[name, seconds since it was last used, bytes]` of each.

    Raises:
        OSError: One cannot be removed.
    """
    home, luggage, found = folder / "environments", Luggage(folder), []
    busy = _environments_of_processes()
    for place in sorted(home.iterdir()) if home.is_dir() else ():
        manifest = place / _MANIFEST
        # Without one it is being built, or its building was cut off: the next builder sees to that.
        age_s = time.time() - manifest.stat().st_mtime if manifest.is_file() else 0.0
        if age_s <= unused_s or os.path.realpath(str(place / "venv")) in busy:
            continue
        lock = luggage.lock(place.name)
        if lock is None:
            continue
        try:
            found.append([place.name, age_s, _bytes_of(place)])
            if remove:
                # First: what is removed by half does not exist.
                manifest.unlink()
                shutil.rmtree(str(place))
        finally:
            os.close(lock)
    return found


def _environments_of_processes() -> Set[str]:
    """The folders in which processes that may be looked into say that they are."""
    found = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            variables = Path(entry.path, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"VIRTUAL_ENV="):
                found.add(os.path.realpath(os.fsdecode(variable.partition(b"=")[2])))
    return found


def _bytes_of(place: Path) -> int:
    """What its files take on the disk; what is linked from a cache counts for its part."""
    total = 0
    for path in place.rglob("*"):
        facts = path.lstat()
        total += facts.st_blocks * 512 // max(1, facts.st_nlink)
    return total
