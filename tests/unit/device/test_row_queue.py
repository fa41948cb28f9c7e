"""Rows with callers, tiers and targets, on their way into the queue."""

import numpy as np
import pytest

from stoker.device.batch_decisions import BatchPolicy
from stoker.device.row_queue import RowQueue, push_with_urgency

NORMAL = 1 << 16


def arena_rows(*placed: int, target_ns: int = 0) -> np.ndarray:
    """Rows that came at 100, as an arena has them."""
    return np.array([(1000, 100, 0, target_ns, 1, one) for one in placed])


@pytest.mark.parametrize(("target_ns", "due_ns"), [(0, 100 + 500_000), (300, 300)])
def test_rows_without_a_target_of_their_own_have_the_models(target_ns: int, due_ns: int) -> None:
    """0 is no target, and the model's counts from when they were queued."""
    queue, policy = RowQueue(), BatchPolicy(target_ms=0.5)
    push_with_urgency(queue, 0, np.arange(1), arena_rows(NORMAL, target_ns=target_ns), policy)
    assert queue.blocks[0].target_ns is not None
    assert queue.blocks[0].target_ns.tolist() == [due_ns]


def test_a_model_without_targets_ignores_those_of_callers() -> None:
    """The deadline of a caller only ends the waiting."""
    queue = RowQueue()
    push_with_urgency(queue, 0, np.arange(1), arena_rows(NORMAL, target_ns=300), BatchPolicy())
    assert not queue.has_targets


def test_shares_begin_with_the_first_row_of_a_named_caller() -> None:
    """Normal rows of no caller need no shares; one row with a caller or a tier does."""
    queue, policy = RowQueue(), BatchPolicy()
    push_with_urgency(queue, 0, np.arange(2), arena_rows(NORMAL, NORMAL), policy)
    assert queue.shares is None
    push_with_urgency(queue, 0, np.arange(1), arena_rows(2500 << 32 | 2 << 16 | 7), policy)
    assert queue.shares is not None
    assert queue.blocks[1].placed is not None
    assert queue.blocks[1].placed.tolist() == [2 << 16 | 7]
    assert policy.weights == {7: 2.5}
