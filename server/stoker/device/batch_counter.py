"""Counts each batch and learns its time, once its callers have their answers."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from stoker.arena import CALLER_BITS, NORMAL_TIER
from stoker.device.auditing import AuditSchedule
from stoker.device.batch import Batch
from stoker.device.batch_cap import BatchCap
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.instance import Instance
from stoker.device.row_blocks import placed_of
from stoker.device.row_queue import RowQueue, callers_of
from stoker.metrics.counters import ModelMetrics


class BatchCounter:
    """Counts the batches of one model in its metrics, and learns their times.

    Attributes:
        lock: Held by the thread that counts.
        active_ns: When the last batch ended.
    """

    def __init__(
        self,
        metrics: ModelMetrics,
        queue: RowQueue,
        times: ServiceTimes,
        cap: BatchCap,
        *,
        audits: AuditSchedule | None,
        always_learns: bool,
        now_ns: int,
    ) -> None:
        """Begin with no batch.

        Args:
            metrics: The counters.
            queue: The waiting rows: shares of callers make it learn times in full.
            times: Learns from each batch.
            cap: The largest size now, with the policy and the allowed sizes.
            audits: Counts batches towards the next audit; None if there are no audits.
            always_learns: Whether times are learned in full also where rows have neither targets nor shares.
            now_ns: The time.
        """
        self.lock: Final = threading.Lock()
        self.active_ns = now_ns
        self._metrics = metrics
        self._queue = queue
        self._times = times
        self._cap = cap
        self._audits = audits
        self._has_target = cap.policy.target_ms is not None
        self._always_learns = always_learns

    def flush(self) -> None:
        """Write to the metrics how long rows were queued."""
        with self.lock:
            self._metrics.flush_queued()

    def count(self, instance: Instance, batch: Batch, started_ns: int, elapsed_ns: int, sharing: int) -> None:
        """Count a batch. The caller holds the lock.

        Args:
            instance: The instance that ran it.
            batch: The batch.
            started_ns: When it started.
            elapsed_ns: How long it took.
            sharing: How many batches, this one among them, shared the device.
        """
        metrics = self._metrics
        self.active_ns = started_ns + elapsed_ns
        size = self._cap.sizes.filled(batch.rows)
        if self._has_target:
            expected_ns = self._times.expected_ns(size, sharing - 1)
            count_answers(metrics, batch, self._cap.policy, started_ns, elapsed_ns, expected_ns)
            self._times.learn(size, elapsed_ns, sharing - 1)
        elif self._queue.shares is not None or self._always_learns:
            self._times.learn(size, elapsed_ns, sharing - 1)
        else:
            self._times.learn_mean(size, elapsed_ns)
        # A batch that ran beside others had only a part of the device.
        metrics.learn_batch_time(size, elapsed_ns // sharing)
        metrics.observe_batch(batch.rows, batch.reason, elapsed_ns)
        metrics.count_busy(elapsed_ns // sharing, callers_of(batch.blocks))
        if batch.turn is not None:
            metrics.observe_turn_wait(batch.turn_wait_ns)
        for block in batch.blocks:
            metrics.note_queued(started_ns - block.enqueued_ns)
        self._count_instance(instance)
        if self._audits is not None:
            # A row that runs alone has only padding beside it.
            instance.monitor.wants_rows = self._audits.count(elapsed_ns) and not self._cap.separate

    def _count_instance(self, instance: Instance) -> None:
        if instance.scattering.padding_rows:
            self._metrics.count_padding(instance.scattering.padding_rows)
            instance.scattering.padding_rows = 0
        if instance.monitor.non_finite_rows:
            self._metrics.count_non_finite(instance.monitor.non_finite_rows)
            instance.monitor.non_finite_rows = 0


def count_answers(
    metrics: ModelMetrics,
    batch: Batch,
    policy: BatchPolicy,
    started_ns: int,
    elapsed_ns: int,
    expected_ns: int,
) -> None:
    """Count the rows of a batch, and the error of its predicted time.

    Args:
        metrics: The counters.
        batch: The batch that has run.
        started_ns: When it started.
        elapsed_ns: How long it took.
        expected_ns: The predicted time.
    """
    target_ns, ended_ns = round((policy.target_ms or 0) * 1e6), started_ns + elapsed_ns
    for block in batch.blocks:
        in_time = block.due_ns(target_ns) >= ended_ns
        if block.placed is None:
            metrics.count_answers(NORMAL_TIER, block.rows, int(np.count_nonzero(in_time)))
            continue
        tiers = placed_of(block) >> CALLER_BITS
        rows, in_time_rows = np.bincount(tiers).tolist(), np.bincount(tiers[in_time], minlength=3).tolist()
        for tier, count in enumerate(rows):
            if count:
                metrics.count_answers(tier, count, in_time_rows[tier])
    metrics.observe_expectation(expected_ns / max(1, elapsed_ns))
