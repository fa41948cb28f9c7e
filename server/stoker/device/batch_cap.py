"""The most rows that a batch may have now, after failures have lowered it."""

from __future__ import annotations

import logging
import threading

import msgspec

from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.metrics.counters import ModelMetrics

logger = logging.getLogger(__name__)


class BatchCap:
    """The most rows in a batch of one model in one device process.

    Once a failure has lowered it, it is not raised again: a size that failed once may fail again, each attempt delays
    waiting requests, and a restarted process begins with `max_batch_rows` anyway.

    Attributes:
        rows: Most rows in a batch now.
        separate: Whether each row runs alone because rows may affect each other.
        sizes: The allowed sizes of batches.
        policy: The settings of batching, with `rows` as `max_batch_rows`.
    """

    def __init__(self, policy: BatchPolicy, sizes: BatchSizes, metrics: ModelMetrics) -> None:
        self.rows = policy.max_batch_rows
        self.policy = policy
        self.separate = self._has_failed = False
        self.sizes = sizes
        self._metrics = metrics
        self._lock = threading.Lock()
        metrics.set_batch_cap_rows(self.rows)

    def halve(self, seen_rows: int) -> None:
        """Halve the cap, to an allowed size, because a batch under the cap `seen_rows` did not fit into memory.

        If several instances run out of memory at once, the cap is halved once.
        """
        with self._lock:
            lower = self.sizes.smaller(self.rows)
            if self.rows != seen_rows or lower is None:
                return
            self._has_failed = True
            self._set(lower)
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
            self._set(1)
            return True

    def change_buckets(self) -> None:
        """Have batches planned with the sizes that are allowed now."""
        with self._lock:
            self.policy = msgspec.structs.replace(self.policy, buckets=self.sizes.buckets)

    def set_buckets(self, buckets: tuple[int, ...]) -> None:
        """Allow these sizes of batches, and batches of as many rows as the largest unless failures forbid that."""
        with self._lock:
            self.sizes.buckets = buckets
            is_lowered = self._has_failed or self.separate
            rows = min(self.rows, buckets[-1]) if is_lowered else buckets[-1]
            self.policy = msgspec.structs.replace(self.policy, buckets=buckets)
            self._set(rows)

    def _set(self, rows: int) -> None:
        self.rows = rows
        self.policy = msgspec.structs.replace(self.policy, max_batch_rows=rows)
        self._metrics.set_batch_cap_rows(rows)
