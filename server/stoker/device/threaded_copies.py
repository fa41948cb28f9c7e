"""Copies large rows by several threads, if that takes less time than by one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

LARGE_BYTES: Final = 4 << 20
"""Fewer bytes are not worth waking a thread for. On a host with 16 cores (2026-11-26) 64 rows of 150,528 bytes took
0.77 ms by one thread and 0.39 ms by four, 64 rows of 3,136 bytes 0.007 and 0.16 ms."""
_MOST_THREADS: Final = 4
_TRIES: Final = 4


class RowsToCopy(NamedTuple):
    """Rows of one arena, and where they go.

    Attributes:
        source: `[capacity, *row_shape]`.
        numbers: Which rows, `int32[rows]`.
        out: `[rows, *row_shape]`.
    """

    source: np.ndarray
    numbers: np.ndarray
    out: np.ndarray

    def copy(self) -> None:
        """Copy them."""
        # With mode="clip" numpy writes into `out` without an intermediate buffer. It holds no interpreter lock.
        self.source.take(self.numbers, axis=0, out=self.out, mode="clip")

    def split(self, most_rows: int) -> Iterator[RowsToCopy]:
        """The same rows in parts of at most `most_rows`."""
        for start in range(0, len(self.numbers), most_rows):
            stop = start + most_rows
            yield RowsToCopy(self.source, self.numbers[start:stop], self.out[start:stop])


class ThreadedCopies:
    """Copies rows in the way that has been faster: the first copies alternate between one thread and several.

    Attributes:
        threaded: Whether several threads are faster; None until that is known.
    """

    def __init__(self, clock_ns: Callable[[], int], threads: int | None = None) -> None:
        """Start no threads before the first copy.

        Args:
            threads: How many copy at once; by default four, or as many as there are cores for this process.
        """
        self._threads = min(_MOST_THREADS, len(os.sched_getaffinity(0))) if threads is None else threads
        self._clock_ns = clock_ns
        self._executor: ThreadPoolExecutor | None = None
        self._spent_ns = {False: 0, True: 0}
        self._copied_bytes = {False: 0, True: 0}
        self._tries = 0
        self.threaded: bool | None = None if self._threads > 1 else False

    def copy(self, parts: Sequence[RowsToCopy]) -> None:
        """Copy rows, all of one size, each to its place."""
        threaded = self.threaded
        if threaded is not None:
            self._copy(parts, threaded=threaded)
            return
        threaded = self._tries % 2 == 1
        begun_ns = self._clock_ns()
        self._copy(parts, threaded=threaded)
        spent_ns = self._clock_ns() - begun_ns
        self._tries += 1
        if self._tries <= 2:
            # They may be the first to touch the memory, and start the threads.
            return
        self._spent_ns[threaded] += spent_ns
        self._copied_bytes[threaded] += sum(part.out.nbytes for part in parts)
        if self._tries == 2 + 2 * _TRIES:
            # By the byte: batches differ in their rows.
            one, several = (self._spent_ns[way] / self._copied_bytes[way] for way in (False, True))
            self.threaded = several < one

    def _copy(self, parts: Sequence[RowsToCopy], *, threaded: bool) -> None:
        if not threaded:
            for part in parts:
                part.copy()
            return
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            # The calling thread copies too.
            self._executor = ThreadPoolExecutor(self._threads - 1, "gather")
            weakref.finalize(self, self._executor.shutdown, wait=False)
        rows = -(-sum(len(part.numbers) for part in parts) // self._threads)
        own, *others = [piece for part in parts for piece in part.split(rows)]
        copies = [self._executor.submit(piece.copy) for piece in others]
        own.copy()
        for copy in copies:
            copy.result()
