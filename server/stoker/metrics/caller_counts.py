"""Counts per caller: rows admitted by frontends, and device time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np

from stoker.metrics.layout import CALLER_ROWS_BLOCK, CALLER_TIMES_BLOCK

__all__ = ["CallerCounts", "CallerUsage"]


class CallerCounts:
    """The counters of one process by caller number.

    Args:
        words: The page of the process.
    """

    __slots__ = ("_counting", "_rows", "_times_ns")

    def __init__(self, words: memoryview) -> None:
        self._rows = words[CALLER_ROWS_BLOCK.offset : CALLER_ROWS_BLOCK.end]
        self._times_ns = words[CALLER_TIMES_BLOCK.offset : CALLER_TIMES_BLOCK.end]
        # Each model of a device process has a thread of its own that counts.
        self._counting = threading.Lock()

    def count_times(self, elapsed_ns: int, rows: Mapping[int, int]) -> None:
        """Attribute the device time of a batch to callers by their rows.

        Args:
            elapsed_ns: How long the batch occupied the device.
            rows: Number of its rows by caller number.
        """
        total = sum(rows.values())
        with self._counting:
            for caller, count in rows.items():
                self._times_ns[caller] += elapsed_ns * count // total

    def count_rows(self, caller: int, rows: int) -> None:
        """Count admitted rows of a caller; a negative number takes rows back. Called by one thread of a frontend."""
        self._rows[caller] += rows


class CallerUsage:
    """Counts per caller, summed over all processes.

    Args:
        pages: The pages of all processes, `int64[pages, words]`.
        pages_in_use: Returns the numbers of the pages that processes use.
    """

    __slots__ = ("_pages", "_pages_in_use", "_seen")

    def __init__(self, pages: np.ndarray, pages_in_use: Callable[[], np.ndarray]) -> None:
        self._pages = pages
        self._pages_in_use = pages_in_use
        self._seen = pages_in_use()

    def look_for_processes(self) -> None:
        """Include the pages of processes that have started since the last call."""
        self._seen = self._pages_in_use()

    def rows(self, caller: int) -> int:
        """Number of rows of a caller that frontends have admitted."""
        return int(self._pages[self._seen, CALLER_ROWS_BLOCK.offset + caller].sum())

    def device_ns(self, caller: int) -> int:
        """Device time of a caller's rows, in nanoseconds."""
        return int(self._pages[self._seen, CALLER_TIMES_BLOCK.offset + caller].sum())

    def all_rows(self) -> np.ndarray:
        """Number of rows that frontends have admitted, by caller: `int64[callers]`."""
        total: np.ndarray = self._pages[self._seen, CALLER_ROWS_BLOCK.offset : CALLER_ROWS_BLOCK.end].sum(
            axis=0
        )
        return total

    def all_device_ns(self) -> np.ndarray:
        """Device time in nanoseconds, by caller: `int64[callers]`."""
        total: np.ndarray = self._pages[self._seen, CALLER_TIMES_BLOCK.offset : CALLER_TIMES_BLOCK.end].sum(
            axis=0
        )
        return total
