"""How large the batches of a model may be, once its device has had too little memory, or its rows see each other."""

from __future__ import annotations

import dataclasses
import logging
import threading

from stoker.device.batch_sizes import BatchSizes
from stoker.device.planner import BatchPolicy
from stoker.metrics.counters import ModelMetrics

__all__ = ["BatchCap"]

logger = logging.getLogger(__name__)


class BatchCap:
    """The most rows in a batch of one model, in one device process; it only ever falls.

    It is not raised again: what has not fitted once may not fit again, each try costs everybody who waits, and a
    process that is started again begins with `max_batch_rows` anyway.

    Attributes:
        rows: Most rows in a batch now.
        separate: Whether each row runs alone because one might see another.
        policy: The settings of batching, with that as `max_batch_rows`.
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
        """Halve the cap, to a size that batches can have, because a batch under the cap `seen_rows` did not fit.

        Where several instances run out of memory at once, one of them halves it.
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
        """Let each row run alone from now on; returns whether that is new. Callable from any thread."""
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
