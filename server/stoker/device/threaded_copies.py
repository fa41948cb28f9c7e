"""Copies large rows by several threads, if that takes less time than by one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.arena import Arena, gather

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

LARGE_BYTES: Final = 4 << 20
"""Fewer bytes are not worth waking a thread for. On a host with 16 cores (2026-11-26) 64 rows of 150,528 bytes took
0.77 ms by one thread and 0.39 ms by four, 64 rows of 3,136 bytes 0.007 and 0.16 ms."""
_MOST_THREADS: Final = 4
_TRIES: Final = 4


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

    def gather(self, blocks: Sequence[tuple[Arena, np.ndarray]], index: int, out: np.ndarray) -> None:
        """Copy rows of one input of several arenas; see `stoker.arena.gather`.

        Args:
            out: `[rows, *row_shape]`.
        """
        threaded = self.threaded
        if threaded is not None:
            self._gather(blocks, index, out, threaded=threaded)
            return
        threaded = self._tries % 2 == 1
        begun_ns = self._clock_ns()
        self._gather(blocks, index, out, threaded=threaded)
        spent_ns = self._clock_ns() - begun_ns
        self._tries += 1
        if self._tries <= 2:
            # They may be the first to touch the memory, and start the threads.
            return
        self._spent_ns[threaded] += spent_ns
        self._copied_bytes[threaded] += out.nbytes
        if self._tries == 2 + 2 * _TRIES:
            # By the byte: batches differ in their rows.
            one, several = (self._spent_ns[way] / self._copied_bytes[way] for way in (False, True))
            self.threaded = several < one

    def _gather(
        self, blocks: Sequence[tuple[Arena, np.ndarray]], index: int, out: np.ndarray, *, threaded: bool
    ) -> None:
        if not threaded:
            gather(blocks, index, out)
            return
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            # The calling thread copies too.
            self._executor = ThreadPoolExecutor(self._threads - 1, "gather")
            weakref.finalize(self, self._executor.shutdown, wait=False)
        rows = -(-len(out) // self._threads)
        own, *others = _split(blocks, out, rows)
        copies = [self._executor.submit(gather, [block], index, part) for block, part in others]
        gather([own[0]], index, own[1])
        for copy in copies:
            copy.result()


def _split(
    blocks: Sequence[tuple[Arena, np.ndarray]], out: np.ndarray, most_rows: int
) -> Iterator[tuple[tuple[Arena, np.ndarray], np.ndarray]]:
    """Yield blocks of at most `most_rows`, each with its part of `out`."""
    place = 0
    for arena, numbers in blocks:
        for start in range(0, len(numbers), most_rows):
            part = numbers[start : start + most_rows]
            yield (arena, part), out[place : place + len(part)]
            place += len(part)
