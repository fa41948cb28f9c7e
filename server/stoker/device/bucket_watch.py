"""Adds a size of batches while a model serves, if padding costs much of the device's time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from stoker.device.batch_cap import BatchCap
from stoker.device.batch_sizes import BatchSizes, ServiceTimes
from stoker.runtimes.base import SizedRuntime
from stoker.system.vital_work import start_thread

logger = logging.getLogger(__name__)

_PADDING: Final = 0.15
"""The share of the device's time from which on a size is added."""
_BATCHES: Final = 2048
"""So many batches are looked at together."""
_MOST_ADDED: Final = 4


def missing_size(
    batches: Sequence[int], buckets: tuple[int, ...], time_ns: Callable[[int], float]
) -> tuple[int, float] | None:
    """The size that would have saved most of the device's time, if 15 % of it was padding.

    A batch without padding is expected to take a time between those of the buckets next to it.

    Args:
        batches: How many batches had 0, 1, 2 … rows.
        buckets: The sizes that there are.
        time_ns: The time of a bucket.

    Returns:
        The size, and the share that was padding; None if no size is to be added.
    """
    counts = np.asarray(batches)
    rows = np.arange(len(counts))
    places = np.searchsorted(buckets, rows)
    times_ns = np.array([time_ns(bucket) for bucket in buckets])
    padded_ns, exact_ns = times_ns[places], np.interp(rows, buckets, times_ns)
    share = float((counts * (padded_ns - exact_ns)).sum() / max(1.0, (counts * padded_ns).sum()))
    if share <= _PADDING:
        return None
    # A size serves batches of as many rows, and those of fewer rows down to the bucket below.
    served = np.array([counts[(places == places[size]) & (rows <= size)].sum() for size in rows])
    size = int((served * (padded_ns - exact_ns)).argmax())
    return size, share


class BucketWatch:
    """Watches the batches of one model.

    Batches are counted on one thread. The size is added on the thread that has loaded the runtime, while nothing is
    in flight and no row waits. What takes long is done before, on a thread of its own.
    """

    def __init__(
        self, name: str, runtime: SizedRuntime, sizes: BatchSizes, cap: BatchCap, times: ServiceTimes
    ) -> None:
        """Begin with no batch counted.

        Args:
            name: The model, for the log.
            sizes: The allowed sizes, to which one is added.
            cap: Whose policy has the sizes too.
            times: The learned times, which learn the time of the new size.
        """
        self._name = name
        self._runtime = runtime
        self._sizes, self._cap, self._times = sizes, cap, times
        self._left, self._added = _BATCHES, 0
        self._counts = [0] * (sizes.buckets[-1] + 1)
        self._opened: int | None = None
        self._opening: threading.Thread | None = None

    def count(self, rows: int) -> None:
        """Count a batch of so many rows, without padding."""
        if self._left <= 0:
            return
        self._counts[rows] += 1
        self._left -= 1
        if not self._left:
            self._look()

    def add_missing(self) -> None:
        """Add the size that was found missing, if it is ready to be added."""
        size, self._opened = self._opened, None
        if size is None:
            return
        try:
            took_ns = self._runtime.add_size(size)
        except Exception as error:  # noqa: BLE001  # it serves with the sizes that there are
            logger.warning("%s: batches of %d rows cannot be prepared: %s", self._name, size, error)
            return
        self._sizes.add(size)
        self._times.add_bucket(size, took_ns)
        self._cap.change_buckets()
        self._added += 1
        if self._added < _MOST_ADDED:
            self._counts = [0] * len(self._counts)
            self._left = _BATCHES

    def _look(self) -> None:
        found = missing_size(self._counts, self._sizes.buckets, self._times.mean_ns)
        if found is None:
            self._counts = [0] * len(self._counts)
            self._left = _BATCHES
            return
        size, share = found
        logger.info(
            "%s: %.0f %% of the device's time is padding: preparing batches of %d rows",
            self._name,
            100 * share,
            size,
        )
        self._opening = start_thread(lambda: self._open(size), f"next size of {self._name}")

    def _open(self, size: int) -> None:
        try:
            self._runtime.open_size(size)
        except Exception as error:  # noqa: BLE001  # it serves with the sizes that there are
            logger.warning("%s: batches of %d rows cannot be prepared: %s", self._name, size, error)
        else:
            self._opened = size
