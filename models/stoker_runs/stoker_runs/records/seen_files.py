"""A cache of digests of unchanged files, identified by device, inode, size and times."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Final

from stoker.system.durable import replace_file

__all__ = ["SeenFiles"]

# A file modified so recently may be modified again without a change of its time.
_SETTLED_NS: Final = 2_000_000_000
_REMEMBERED: Final = 100_000


class SeenFiles:
    """A cache of digests of files.

    Args:
        path: The file that stores the cache.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now_ns = time.time_ns()
        self._changed = False
        self._names: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            names = json.loads(path.read_bytes())
            self._names = names if isinstance(names, dict) else {}

    @staticmethod
    def _key(facts: os.stat_result) -> str:
        times = f"{facts.st_mtime_ns} {facts.st_ctime_ns}"
        return f"{facts.st_dev} {facts.st_ino} {facts.st_size} {times} {facts.st_mode}"

    def digest_of(self, facts: os.stat_result) -> str | None:
        """The cached digest of a file, if it is unchanged."""
        return self._names.get(self._key(facts))

    def remember(self, facts: os.stat_result, digest: str) -> None:
        """Cache a digest, unless the file is so new that it may change undetected."""
        if self._now_ns - max(facts.st_mtime_ns, facts.st_ctime_ns) > _SETTLED_NS:
            self._names[self._key(facts)] = digest
            self._changed = True

    def write(self) -> None:
        """Store the cache if it has changed, limited to the latest entries."""
        if self._changed:
            names = dict(list(self._names.items())[-_REMEMBERED:])
            # Failing to store the cache only costs time.
            with contextlib.suppress(OSError):
                replace_file(self._path, json.dumps(names).encode())
