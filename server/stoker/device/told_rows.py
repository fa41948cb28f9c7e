"""Rows whose frontend says whose they are, and how urgent, on their way into the queue."""

from __future__ import annotations

from typing import Final

import numpy as np

from stoker.arena import CALLER_BITS, NORMAL_TIER, WEIGHT_BITS
from stoker.device.plans import BatchPolicy
from stoker.device.row_queue import RowQueue

__all__ = ["push_told"]

_NORMAL: Final = NORMAL_TIER << CALLER_BITS
_CALLER: Final = (1 << CALLER_BITS) - 1
_TIER: Final = (1 << WEIGHT_BITS - CALLER_BITS) - 1


def push_told(
    queue: RowQueue, lane: int, numbers: np.ndarray, queued: np.ndarray, policy: BatchPolicy
) -> None:
    """Queue rows.

    Args:
        queue: Where they go.
        lane: Key of their lane.
        numbers: Row numbers.
        queued: What the arena says of them, `int64[rows, 6]`; see `stoker.arena`.
        policy: Settings of batching; it takes over the weights of the rows' callers.
    """
    deadline_ns, enqueued_ns, position, target_ns, size, placed = queued.T
    if policy.target_ms is not None and not target_ns.all():
        target_ns = np.where(target_ns, target_ns, enqueued_ns + round(policy.target_ms * 1e6))
    # As long as nobody is told apart, the planner need not look at that.
    apart = queue.shares is not None or bool((placed != _NORMAL).any())
    if apart:
        for value in {*placed.tolist()}:
            policy.weights[value & _CALLER] = (value >> WEIGHT_BITS) / 1000 or 1.0
    queue.push(
        lane,
        numbers,
        position,
        enqueued_ns,
        deadline_ns,
        target_ns=None if policy.target_ms is None else target_ns,
        size=None if policy.target_ms is None else size,
        tier=placed >> CALLER_BITS & _TIER if apart else None,
        caller=placed & _CALLER if apart else None,
    )
