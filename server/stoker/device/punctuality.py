"""Counts rows that were answered in time, by tier."""

from __future__ import annotations

import numpy as np

from stoker.device.lanes import Batch
from stoker.device.lots import placed_of
from stoker.device.planner import BatchPolicy
from stoker.metrics.counters import ModelMetrics
from stoker.placed import CALLER_BITS, NORMAL_TIER

__all__ = ["count_answers"]


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
        policy: The settings of batching.
        started_ns: When it started.
        elapsed_ns: How long it took.
        expected_ns: The predicted time.
    """
    target_ns, ended_ns = round((policy.target_ms or 0) * 1e6), started_ns + elapsed_ns
    for lot in batch.lots:
        in_time = lot.due_ns(target_ns) >= ended_ns
        if lot.placed is None:
            metrics.count_answers(NORMAL_TIER, lot.rows, int(np.count_nonzero(in_time)))
            continue
        tiers = placed_of(lot) >> CALLER_BITS
        rows, in_time_rows = np.bincount(tiers).tolist(), np.bincount(tiers[in_time], minlength=3).tolist()
        for tier, count in enumerate(rows):
            if count:
                metrics.count_answers(tier, count, in_time_rows[tier])
    metrics.observe_expectation(expected_ns / max(1, elapsed_ns))
