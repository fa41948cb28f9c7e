"""Waiting rows that will miss their targets."""

import numpy as np

from stoker.device.late_rows import LateRows
from stoker.device.row_blocks import Part, RowBlock, split_into_blocks


def block(*deadlines_ns: int, first: int = 0, lane: int = 0) -> RowBlock:
    """Rows with these deadlines, numbered from `first`."""
    zeros = np.zeros(len(deadlines_ns), np.int64)
    numbers = np.arange(first, first + len(deadlines_ns), dtype=np.int32)
    return RowBlock(lane, numbers, zeros, zeros, np.array(deadlines_ns), 0, size=zeros + 1)


def numbers_of(parts: list[Part]) -> list[int]:
    return [number for part in split_into_blocks(parts) for number in part.numbers.tolist()]


def test_expired_rows_are_taken_out() -> None:
    """The others stay in their order."""
    late = LateRows()
    late.add(block(50, 10, 30), 10)
    late.add(block(90, first=3), 90)
    assert not late.may_have_expired(9)
    assert late.take_expired(9) == []
    assert numbers_of(late.take_expired(30)) == [1, 2]
    assert (late.rows, late.first_deadline_ns(2)) == (2, 50)
    assert numbers_of(late.take_first(2)) == [0, 3]


def test_cancelled_rows_expire() -> None:
    """Their deadline is 0 when the deadlines are read again."""
    late = LateRows()
    late.add(block(50, 60), 50)
    late.refresh(lambda _, numbers: np.where(numbers == 1, 0, 50))
    assert numbers_of(late.take_expired(5)) == [1]


def test_rows_of_a_lost_lane_are_dropped() -> None:
    """Rows of other lanes stay."""
    late = LateRows()
    late.add_all((block(50), block(60, 70, first=1, lane=1)), 50)
    late.drop_lane(0)
    assert (late.rows, late.first_deadline_ns(1)) == (2, 60)
