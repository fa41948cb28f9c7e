"""The sizes of a model's batches in rows: any size, or padded to one of a few buckets.

A GPU is prepared once for each size (memory, kernels chosen by measuring, captured graphs, compiled code), and each
further size costs that again. So its batches have few sizes.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from bisect import bisect_left
from dataclasses import dataclass

from stoker.deployment import Deployment, Device
from stoker.device.batching import BatchPolicy
from stoker.errors import LoadFailed
from stoker.metrics.counters import ModelMetrics

__all__ = ["BatchCap", "BatchSizes", "powers_of_two", "timed_first", "with_batch_sizes"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The allowed sizes of batches.

    Attributes:
        buckets: Ascending; a batch is padded to the next of them. Empty: batches run unpadded.
    """

    buckets: tuple[int, ...] = ()

    def filled(self, rows: int) -> int:
        """The size in rows at which a batch of `rows` runs."""
        if not self.buckets:
            return rows
        return self.buckets[bisect_left(self.buckets, rows)]

    def smaller(self, size: int) -> int | None:
        """The size to try after one that did not fit: half of it, or the next smaller bucket.

        None if there is none.
        """
        if not self.buckets:
            return size // 2 or None
        below = [bucket for bucket in self.buckets if bucket < size]
        halves = [bucket for bucket in below if bucket <= size // 2]
        return max(halves) if halves else min(below, default=None)


def powers_of_two(max_batch_rows: int) -> tuple[int, ...]:
    """The powers of two below `max_batch_rows`, and `max_batch_rows` itself."""
    return (*(1 << power for power in range((max_batch_rows - 1).bit_length())), max_batch_rows)


def timed_first(buckets: tuple[int, ...], max_batch_rows: int) -> tuple[int, ...]:
    """The sizes of batches that are measured before a model serves: its buckets, or one, two, half and all rows."""
    sizes = buckets or (1, 2, max_batch_rows // 2, max_batch_rows)
    return tuple(sorted({size for size in sizes if 0 < size <= max_batch_rows}))


def with_batch_sizes(deployment: Deployment, device: Device) -> Deployment:
    """Return the deployment with the buckets and `max_batch_rows` that apply on this device.

    Raises:
        LoadFailed: A bucket is larger than `max_batch_rows`.
    """
    buckets, most = deployment.batch_buckets, deployment.max_batch_rows
    if buckets is None:
        by_default = device.kind == "cuda" and deployment.framework != "script"
        return dataclasses.replace(deployment, batch_buckets=powers_of_two(most) if by_default else ())
    if not buckets:
        return deployment
    if buckets[-1] > most:
        raise LoadFailed(
            f"{deployment.name}: batch_buckets has {buckets[-1]}, but max_batch_rows is {most}; "
            "raise max_batch_rows, or leave that bucket out"
        )
    if buckets[-1] < most:
        logger.warning(
            "%s: max_batch_rows is %d, not %d: batch_buckets has no larger one",
            deployment.name,
            buckets[-1],
            most,
        )
    return dataclasses.replace(deployment, max_batch_rows=buckets[-1])


class BatchCap:
    """The most rows in a batch of one model in one device process; it is only ever lowered.

    It is not raised again: a size that failed once may fail again, each attempt delays waiting requests, and a
    restarted process begins with `max_batch_rows` anyway.

    Attributes:
        rows: Most rows in a batch now.
        separate: Whether each row runs alone because rows may affect each other.
        policy: The settings of batching, with `rows` as `max_batch_rows`.
    """

    def __init__(self, policy: BatchPolicy, sizes: BatchSizes, metrics: ModelMetrics) -> None:
        self.rows = policy.max_batch_rows
        self.policy = policy
        self.separate = False
        self._sizes = sizes
        self._metrics = metrics
        self._lock = threading.Lock()
        metrics.set_batch_cap_rows(self.rows)

    def halve(self, seen_rows: int) -> None:
        """Halve the cap, to an allowed size, because a batch under the cap `seen_rows` did not fit into memory.

        If several instances run out of memory at once, the cap is halved once.
        """
        with self._lock:
            lower = self._sizes.smaller(self.rows)
            if self.rows != seen_rows or lower is None:
                return
            self._lower(lower)
        logger.warning(
            "%s: the device has no memory for a batch: from now on batches have at most %d rows, not %d",
            threading.current_thread().name,
            lower,
            seen_rows,
        )

    def stop_batching(self) -> bool:
        """Run each row alone from now on; returns whether that is a change. May be called on any thread."""
        with self._lock:
            if self.separate:
                return False
            self.separate = True
            self._lower(1)
            return True

    def _lower(self, rows: int) -> None:
        self.rows = rows
        self.policy = dataclasses.replace(self.policy, max_batch_rows=rows)
        self._metrics.set_batch_cap_rows(rows)
