"""What was read before: digests of files that have not been touched since, by device, inode, length and times."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Final

from stoker.system.durable import replace_file

__all__ = ["SeenFiles"]

# A file that was written this short a time ago may be written again with the same time.
_SETTLED_NS: Final = 2_000_000_000
_REMEMBERED: Final = 100_000


class SeenFiles:
    """Digests of files that were read before.

    Args:
        path: The file in which they are kept.
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
        """What was remembered of the file, if it was seen before."""
        return self._names.get(self._key(facts))

    def remember(self, facts: os.stat_result, digest: str) -> None:
        """Note what was read, unless it is so new that it may change without a trace."""
        if self._now_ns - max(facts.st_mtime_ns, facts.st_ctime_ns) > _SETTLED_NS:
            self._names[self._key(facts)] = digest
            self._changed = True

    def write(self) -> None:
        """Keep what is new, of very many the last ones."""
        if self._changed:
            names = dict(list(self._names.items())[-_REMEMBERED:])
            # It is only there to be quick.
            with contextlib.suppress(OSError):
                replace_file(self._path, json.dumps(names).encode())
