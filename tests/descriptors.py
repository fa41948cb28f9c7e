"""A process that may not open anything more."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["open_descriptors", "room_for_descriptors"]


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    """Let this process open so many files and sockets more, and what it has opened stay open."""
    # Files left open by other tests would be closed in between and make room.
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel gives the lowest number that is free; the limit is on the number.
    probes = [os.dup(0) for _ in range(count + 1)]
    for probe in probes:
        os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probes[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> int:
    """How many this process has open, but for those that nobody can reach any more."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
