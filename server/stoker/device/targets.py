"""The choice of the rows with targets that leave next: as many as possible are answered in time, also later ones.

The rules, with the time `free_ns` at which the device is expected to be free:

1. A row is hopeless if its target is before the end of a batch of the rows that its request still lacks.
2. If all waiting rows fit in a batch that ends before the earliest target, all of them leave.
3. Otherwise the largest feasible batch leaves: the largest n for which n rows have targets after the end of a batch
   of n. Rows with earlier targets are lost. But if the order of targets, in batches as large as the first target
   allows, answers more rows for its time, the first batch of that order leaves, and no row is lost yet.

Of the rows that are in time, those with the earliest targets run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.device.row_blocks import (
    DUE,
    LANE,
    POSITION,
    SIZE,
)

_WORTH: Final = 0.75
"""Price of device time when batches are compared: this part of the rows that the largest batches would run in it."""
_MANY: Final = 2048
"""From this many rows on, converting all times to Python numbers costs more than reading a few of them."""
_LOOK_AHEAD: Final = 3
"""How many batches are planned ahead."""


class Choice(NamedTuple):
    """A batch.

    Attributes:
        start, stop: The range of rows of the table that leave.
        reason: Why.
    """

    start: int
    stop: int
    reason: str


def numbers_of(times_ns: np.ndarray) -> Sequence[int]:
    """Times as Python numbers, of which a few are read."""
    return times_ns.tolist() if len(times_ns) <= _MANY else times_ns.data


def find_hopeless(table: np.ndarray, free_ns: int, costs_ns: Sequence[int]) -> np.ndarray:
    """Find the rows whose requests lack too many rows to be in time; returns `bool[rows]`.

    Args:
        table: Waiting rows, at least one, ascending in `DUE`.
        free_ns: When the device is free.
        costs_ns: Expected times of batches of 0 rows up to the most.
    """
    position, size, lane = table[POSITION], table[SIZE], table[LANE]
    begins = np.empty(len(position), bool)
    begins[0] = True
    begins[1:] = (position[1:] != position[:-1] + 1) | (position[1:] == size[:-1]) | (lane[1:] != lane[:-1])
    starts = np.flatnonzero(begins)
    missing = size[starts] - position[starts]
    cap = len(costs_ns) - 1
    batches, rest = np.divmod(missing, cap)
    needed = batches * costs_ns[cap] + np.asarray(costs_ns)[rest]
    late = table[DUE][starts] < free_ns + needed
    return np.repeat(late, np.diff(starts, append=len(position)))


def choose(due: Sequence[int], free_ns: int, costs_ns: Sequence[int]) -> Choice:
    """Choose the rows that leave, where not all of them can, or where one of them would be late.

    Args:
        due: The due time of each row, ascending; each can be in time alone.
        free_ns: When the device is free.
        costs_ns: Expected times of batches of 0 rows up to the most.
    """
    cap = len(costs_ns) - 1
    if len(due) >= cap and due[0] >= free_ns + costs_ns[cap]:
        return Choice(0, cap, "full")
    largest = _largest(due, 0, free_ns, costs_ns)
    if not largest[0]:
        return Choice(*largest, "full" if largest[1] == cap else "largest")
    in_order = _in_order(due, 0, free_ns, costs_ns)
    if in_order != largest:
        worth = _worth(due, free_ns, costs_ns, _in_order, in_order)
        if worth > _worth(due, free_ns, costs_ns, _largest, largest):
            return Choice(*in_order, "order")
    return Choice(*largest, "largest")


def largest_within(limit_ns: int, costs_ns: Sequence[int]) -> int:
    """The most rows of a batch that ends within a given time; at least one."""
    return max(1, bisect_right(costs_ns, limit_ns) - 1)


def largest_feasible(due: Sequence[int], free_ns: int, costs_ns: Sequence[int]) -> int:
    """The most rows of a batch that is in time for all of its rows.

    Args:
        due: The due time of each row, ascending.
        free_ns: When the device is free.
        costs_ns: Expected times of batches of 0 rows up to the most.
    """
    start, stop = _largest(due, 0, free_ns, costs_ns)
    return stop - start


def _largest(due: Sequence[int], begin: int, free_ns: int, costs_ns: Sequence[int]) -> tuple[int, int]:
    """The largest batch in time, of the rows from `begin` on, as the indices of its first row and behind its last."""
    end = len(due)
    low, high = 0, min(len(costs_ns) - 1, end - begin)
    rows = high
    while low < high:
        # n rows are in time if the first of the last n rows is.
        if due[end - rows] >= free_ns + costs_ns[rows]:
            low = rows
        else:
            high = rows - 1
        rows = (low + high + 1) // 2
    start = bisect_left(due, free_ns + costs_ns[low], begin) if low else end
    return start, start + low


def _in_order(due: Sequence[int], begin: int, free_ns: int, costs_ns: Sequence[int]) -> tuple[int, int]:
    """The largest batch that begins with the first row that can be in time; as `_largest`."""
    start = bisect_left(due, free_ns + costs_ns[1], begin)
    if start == len(due):
        return start, start
    rows = bisect_right(costs_ns, due[start] - free_ns) - 1
    return start, min(start + rows, len(due))


def _worth(
    due: Sequence[int],
    free_ns: int,
    costs_ns: Sequence[int],
    batch: Callable[[Sequence[int], int, int, Sequence[int]], tuple[int, int]],
    first: tuple[int, int],
) -> float:
    """How many rows batches made in this way answer, given the first one, minus the price of their time."""
    cap = len(costs_ns) - 1
    price = _WORTH * cap / max(1, costs_ns[cap])
    worth = 0.0
    start, stop = first
    for ahead in range(_LOOK_AHEAD):
        if ahead:
            start, stop = batch(due, stop, free_ns, costs_ns)
        if start == stop:
            break
        cost_ns = costs_ns[stop - start]
        worth += stop - start - price * cost_ns
        free_ns += cost_ns
    return worth
