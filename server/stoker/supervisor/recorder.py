"""What the console shows of the past: the counters and the processes of each second, kept by the supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.metrics.past import Past, ProcessReading

__all__ = ["Recorder", "read_processes"]

_TICK_MS: Final = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Of the fields behind the name of the program, which may hold spaces.
_USER_TICKS, _SYSTEM_TICKS, _RESIDENT_PAGES = 11, 12, 21


class Recorder:
    """Writes a step of the past whenever it is told to look."""

    def __init__(
        self,
        metrics_fd: int,
        pids: Callable[[], Mapping[int, int]],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Begin with no past.

        Args:
            metrics_fd: The memory of the metrics.
            pids: The processes that run, by their pages; the supervisor itself aside.
            clock_s: The time in seconds since 1970.
        """
        self._memory, self._past = MetricMemory(metrics_fd), Past(metrics_fd)
        self._pids, self._clock_s = pids, clock_s

    async def look(self) -> bool:
        """Write the step of this moment; it is to be called again."""
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
    """Read what processes take, by their pages; those that have ended are left out."""
    for page, pid in pids.items():
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        cpu_ms = _TICK_MS * (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]))
        yield ProcessReading(page, pid, cpu_ms, _PAGE_BYTES * int(fields[_RESIDENT_PAGES]))
