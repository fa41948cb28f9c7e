"""Rows that say whose they are, on their way into the queue."""

import numpy as np
import pytest

from stoker.device.batching import BatchPolicy
from stoker.device.row_queue import RowQueue, push_with_urgency

NORMAL = 1 << 16


def told(*placed: int, target_ns: int = 0) -> np.ndarray:
    """Rows that came at 100, as an arena has them."""
    return np.array([(1000, 100, 0, target_ns, 1, one) for one in placed])


@pytest.mark.parametrize(("target_ns", "due_ns"), [(0, 100 + 500_000), (300, 300)])
def test_rows_without_a_target_of_their_own_have_the_models(target_ns: int, due_ns: int) -> None:
    """0 is no target, and the model's counts from when they were queued."""
    queue, policy = RowQueue(), BatchPolicy(target_ms=0.5)
    push_with_urgency(queue, 0, np.arange(1), told(NORMAL, target_ns=target_ns), policy)
    assert queue.blocks[0].target_ns is not None
    assert queue.blocks[0].target_ns.tolist() == [due_ns]


def test_where_there_are_no_targets_nothing_gets_one() -> None:
    """A deadline of a caller's own then only ends the waiting."""
    queue = RowQueue()
    push_with_urgency(queue, 0, np.arange(1), told(NORMAL, target_ns=300), BatchPolicy())
    assert not queue.has_targets


def test_nobody_is_told_apart_until_somebody_is() -> None:
    """Normal rows of nobody leave the planner as it was; another row makes it look at all."""
    queue, policy = RowQueue(), BatchPolicy()
    push_with_urgency(queue, 0, np.arange(2), told(NORMAL, NORMAL), policy)
    assert queue.shares is None
    push_with_urgency(queue, 0, np.arange(1), told(2500 << 32 | 2 << 16 | 7), policy)
    assert queue.shares is not None
    assert queue.blocks[1].placed is not None
    assert queue.blocks[1].placed.tolist() == [2 << 16 | 7]
    assert policy.weights == {7: 2.5}
