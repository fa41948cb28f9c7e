"""Queues rows whose frontend writes their caller and urgency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.device.plans import BatchPolicy
from stoker.device.row_queue import Lot, RowQueue
from stoker.placed import CALLER_BITS, CALLER_MASK, NORMAL, TIER_MASK, WEIGHT_BITS, caller_of

__all__ = ["callers_of", "push_rows", "push_told"]


def push_rows(
    queue: RowQueue, lane: int, numbers: np.ndarray, queued: np.ndarray, policy: BatchPolicy, *, told: bool
) -> None:
    """Queue rows of a frontend; uses `push_told` if the frontend writes caller and urgency."""
    if told:
        push_told(queue, lane, numbers, queued, policy)
    else:
        queue.push(lane, numbers, deadline_ns=queued[:, 0], enqueued_ns=queued[:, 1], position=queued[:, 2])


def push_told(
    queue: RowQueue, lane: int, numbers: np.ndarray, queued: np.ndarray, policy: BatchPolicy
) -> None:
    """Queue rows.

    Args:
        queue: The queue.
        lane: Key of their lane.
        numbers: Row numbers.
        queued: The rows' columns in the arena, `int64[rows, 6]`; see `stoker.arena`.
        policy: The settings of batching, to which the weights of the rows' callers are added.
    """
    deadline_ns, enqueued_ns, position, target_ns, size, placed = queued.T
    if policy.target_ms is not None and not target_ns.all():
        target_ns = np.where(target_ns, target_ns, enqueued_ns + round(policy.target_ms * 1e6))
    # As long as callers are not told apart, the planner need not look at them.
    apart = queue.shares is not None or bool((placed != NORMAL).any())
    if apart:
        for value in {*placed.tolist()}:
            policy.weights[caller_of(value)] = (value >> WEIGHT_BITS) / 1000 or 1.0
    queue.push(
        lane,
        numbers,
        position,
        enqueued_ns,
        deadline_ns,
        target_ns=None if policy.target_ms is None else target_ns,
        size=None if policy.target_ms is None else size,
        tier=placed >> CALLER_BITS & TIER_MASK if apart else None,
        caller=placed & CALLER_MASK if apart else None,
    )


def callers_of(lots: Sequence[Lot]) -> dict[int, int]:
    """How many of these rows each caller has, by caller number."""
    counts: dict[int, int] = {}
    for lot in lots:
        if lot.placed is None:
            counts[0] = counts.get(0, 0) + lot.rows
            continue
        of_lot = np.bincount(lot.placed & CALLER_MASK)
        for caller in np.flatnonzero(of_lot).tolist():
            counts[caller] = counts.get(caller, 0) + int(of_lot[caller])
    return counts
