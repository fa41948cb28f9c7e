"""Waiting rows sorted by due time."""

import numpy as np

from stoker.device.due_order import DueOrder
from stoker.device.row_blocks import RowBlock, split_into_blocks

NEVER = 1 << 60


def block(*numbers: int, lane: int = 0) -> RowBlock:
    """Rows of requests of one row each."""
    zeros = np.zeros(len(numbers), np.int64)
    return RowBlock(lane, np.array(numbers, np.int32), zeros, zeros, zeros + NEVER, 0, size=zeros + 1)


def rows_of(order: DueOrder) -> list[tuple[int, int]]:
    """Lane and number of each row, in order."""
    return [
        (part.lane, number)
        for first in [order.take_first(1) for _ in range(len(order))]
        for part in split_into_blocks(first)
        for number in part.numbers.tolist()
    ]


def test_rows_are_sorted_in_and_equal_ones_keep_their_order() -> None:
    """Rows that come later and are due earlier go before."""
    order = DueOrder()
    order.add([block(1, 2)], np.array([10, 30]), NEVER, ascending=True)
    order.add([block(3, 4, lane=1)], np.array([30, 20]), NEVER, ascending=False)
    assert order.due_ns.tolist() == [10, 20, 30, 30]
    assert rows_of(order) == [(0, 1), (1, 4), (0, 2), (1, 3)]


def test_cancelled_rows_are_due_at_once() -> None:
    """Their deadline is 0 when the deadlines are read again."""
    order = DueOrder()
    order.add([block(1, 2, 3)], np.array([10, 20, 30]), NEVER, ascending=True)
    order.refresh(lambda _, numbers: np.where(numbers == 3, 0, NEVER))
    assert order.due_ns.tolist() == [0, 10, 20]
    assert order.first_deadline_ns == 0
    assert rows_of(order) == [(0, 3), (0, 1), (0, 2)]


def test_rows_of_a_lost_lane_are_removed() -> None:
    """The order of the others stays."""
    order = DueOrder()
    order.add([block(1), block(2, lane=1), block(3)], np.array([1, 2, 3]), NEVER, ascending=True)
    order.drop_lane(0)
    assert (len(order), rows_of(order)) == (1, [(1, 2)])


def test_rows_are_put_back_in_front() -> None:
    """A table of rows that were taken leads the order again."""
    order = DueOrder()
    order.add([block(1, 2)], np.array([10, 20]), NEVER, ascending=True)
    table = order.table().copy()
    order.take_first(1)
    order.put_first(table[:, :1])
    order.put_first(table[:, :0])
    assert (order.due_ns.tolist(), rows_of(order)) == ([10, 20], [(0, 1), (0, 2)])
