"""Records the history that the console shows: a step each second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from stoker.metrics.history import Past, ProcessReading
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory

_TICK_MS: Final = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Counted from behind the program's name, which may contain spaces.
_USER_TICKS, _SYSTEM_TICKS, _RESIDENT_PAGES = 11, 12, 21


class Recorder:
    """Writes a step of the history whenever `record` is called."""

    def __init__(
        self,
        metrics_fd: int,
        pids: Callable[[], Mapping[int, int]],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Create it with an empty history.

        Args:
            pids: Returns the running processes by their pages, without the supervisor.
            clock_s: The time in seconds since 1970.
        """
        self._memory, self._past = MetricMemory(metrics_fd), Past(metrics_fd)
        self._pids, self._clock_s = pids, clock_s

    async def record(self) -> bool:
        """Write a step; to be called once a second."""
        totals = self._memory.totals()
        restarts = totals.restarts()
        self._past.record(
            round(1000 * self._clock_s()),
            totals.slots,
            (restarts["device"], restarts["frontend"]),
            totals.gpus(),
            read_processes({**self._pids(), SUPERVISOR_PAGE: os.getpid()}),
        )
        return True


def read_processes(pids: Mapping[int, int], proc: Path = Path("/proc")) -> Iterator[ProcessReading]:
    """Read the resource use of processes, by page; those that have ended are left out."""
    for page, pid in pids.items():
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        cpu_ms = _TICK_MS * (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]))
        yield ProcessReading(page, pid, cpu_ms, _PAGE_BYTES * int(fields[_RESIDENT_PAGES]))
