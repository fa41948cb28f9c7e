"""What callers have had: rows that frontends have let in, and the time of devices."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from stoker.metrics.layout import CALLER_ROWS_BLOCK, CALLER_TIMES_BLOCK

__all__ = ["CallerCounts", "CallerUsage"]


class CallerCounts:
    """What one process counts of callers, by their numbers.

    Args:
        words: Its page.
    """

    __slots__ = ("_counting", "_rows", "_times_ns")

    def __init__(self, words: memoryview) -> None:
        self._rows = words[CALLER_ROWS_BLOCK.offset : CALLER_ROWS_BLOCK.end]
        self._times_ns = words[CALLER_TIMES_BLOCK.offset : CALLER_TIMES_BLOCK.end]
        # Models of a device process have threads of their own.
        self._counting = threading.Lock()

    def count_times(self, elapsed_ns: int, rows: Mapping[int, int]) -> None:
        """Divide the time of a batch among callers.

        Args:
            elapsed_ns: How long it kept the device.
            rows: How many of its rows were each caller's.
        """
        total = sum(rows.values())
        with self._counting:
            for caller, count in rows.items():
                self._times_ns[caller] += elapsed_ns * count // total

    def count_rows(self, caller: int, rows: int) -> None:
        """Count rows of a caller that were let in; less than 0 takes them back. A frontend has one thread for it."""
        self._rows[caller] += rows


class CallerUsage:
    """What callers have had of all processes.

    Args:
        pages: Those of all processes, `int64[pages, words]`.
        taken: Which of them a process has, `int64[pages]`.
    """

    __slots__ = ("_pages", "_seen", "_taken")

    def __init__(self, pages: np.ndarray, taken: np.ndarray) -> None:
        self._pages = pages
        self._taken = taken
        self._seen = np.flatnonzero(taken)

    def look_for_processes(self) -> None:
        """Take note of those that have come since."""
        self._seen = np.flatnonzero(self._taken)

    def rows(self, caller: int) -> int:
        """How many of a caller's rows frontends have let in."""
        return int(self._pages[self._seen, CALLER_ROWS_BLOCK.offset + caller].sum())

    def device_ns(self, caller: int) -> int:
        """How long batches kept devices for a caller."""
        return int(self._pages[self._seen, CALLER_TIMES_BLOCK.offset + caller].sum())

    def all_rows(self) -> np.ndarray:
        """How many rows of each caller frontends have let in, `int64[callers]`."""
        total: np.ndarray = self._pages[self._seen, CALLER_ROWS_BLOCK.offset : CALLER_ROWS_BLOCK.end].sum(
            axis=0
        )
        return total

    def all_device_ns(self) -> np.ndarray:
        """How long batches kept devices for each caller, `int64[callers]`."""
        total: np.ndarray = self._pages[self._seen, CALLER_TIMES_BLOCK.offset : CALLER_TIMES_BLOCK.end].sum(
            axis=0
        )
        return total
