"""Rows sorted by due time, and late rows, both kept as parts that are cut where some rows leave.

Rows usually arrive in the order in which they are due. Then their lots are kept as they are, and only the due times
are copied. Where lots overlap, the rows from there on are merged into one table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

import numpy as np

from stoker.device.lots import DEADLINE, DUE, LANE, NUMBER, Lot, Part, Table, joined, least

__all__ = ["NEVER_NS", "DueOrder", "LateRows", "cut", "without_lane"]

NEVER_NS: Final = (1 << 63) - 1
_NOTHING: Final = np.empty(0, np.int64)

_Part = TypeVar("_Part", Lot, Part)

Deadlines = Callable[[int, np.ndarray], np.ndarray]


class DueOrder:
    """Rows sorted by due time.

    Attributes:
        due_ns: The due time of each row, `int64[rows]`, ascending.
        parts: The rows.
        first_deadline_ns: A lower bound of all deadlines.
    """

    __slots__ = ("due_ns", "first_deadline_ns", "parts")

    def __init__(self, parts: Iterable[Part] = (), due_ns: np.ndarray = _NOTHING) -> None:
        self.parts = deque(parts)
        self.due_ns = due_ns
        self.first_deadline_ns = NEVER_NS

    def __len__(self) -> int:
        return len(self.due_ns)

    def add(
        self, lots: Iterable[Lot], due_ns: np.ndarray, first_deadline_ns: int, *, ascending: bool
    ) -> None:
        """Insert lots; of rows that are due at the same time those that came first stay first.

        Args:
            lots: The rows.
            due_ns: The due time of each row.
            first_deadline_ns: A lower bound of their deadlines.
            ascending: Whether `due_ns` is ascending.
        """
        if len(self.due_ns):
            first_deadline_ns = min(first_deadline_ns, self.first_deadline_ns)
        self.first_deadline_ns = first_deadline_ns
        if not len(self.due_ns):
            if ascending:
                self.parts, self.due_ns = deque(lots), due_ns
                return
            self._sort([*lots], due_ns)
            return
        if ascending and due_ns[0] >= self.due_ns[-1]:
            self.parts.extend(lots)
            self.due_ns = np.concatenate((self.due_ns, due_ns))
            return
        place = int(self.due_ns.searchsorted(due_ns.min(), side="right"))
        first, known_ns = cut(self.parts, place), self.due_ns
        self._sort([*self.parts, *lots], np.concatenate((known_ns[place:], due_ns)))
        self.parts.extendleft(reversed(first))
        self.due_ns = np.concatenate((known_ns[:place], self.due_ns))

    def take_first(self, rows: int) -> list[Part]:
        """Remove and return the first rows."""
        if rows == len(self.due_ns):
            parts, self.parts, self.due_ns = list(self.parts), deque(), _NOTHING
            return parts
        self.due_ns = self.due_ns[rows:]
        return cut(self.parts, rows)

    def put_first(self, table: np.ndarray) -> None:
        """Insert rows, given as a table, before all others."""
        if table.shape[1]:
            self.parts.appendleft(Table(table))
            self.due_ns = np.concatenate((table[DUE], self.due_ns))

    def table(self) -> np.ndarray:
        """Return all rows as one table, and keep them in that form."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Table):
            return self.parts[0].columns
        table = joined(self.parts, self.due_ns)
        self.parts, self.due_ns = deque((Table(table),)), table[DUE]
        return table

    def replace(self, table: np.ndarray) -> None:
        """Keep only these rows, given as a table that is ascending in `DUE`."""
        self.parts, self.due_ns = deque((Table(table),) if table.shape[1] else ()), table[DUE]

    def refresh(self, deadlines: Deadlines) -> None:
        """Read again which rows have been cancelled: they are due at once."""
        changed = [_refreshed(part, deadlines) for part in self.parts]
        if any(changed):
            table = self.table()
            self.first_deadline_ns = int(table[DEADLINE].min())
            self._sort([Table(table)], np.minimum(self.due_ns, table[DEADLINE]))

    def drop_lane(self, lane: int) -> None:
        """Remove the rows of a lane."""
        if self.parts:
            table = self.table()
            self.replace(table[:, table[LANE] != lane])

    def _sort(self, parts: list[Part], due_ns: np.ndarray) -> None:
        # A stable sort: rows due at the same time stay in order of arrival, and requests stay in one piece.
        order = due_ns.argsort(kind="stable")
        self.replace(joined(parts, due_ns)[:, order])


class LateRows:
    """Rows that will miss their targets, in the order in which that was found.

    Attributes:
        rows: How many.
        parts: The rows.
    """

    __slots__ = ("_first_over_ns", "parts", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.parts: deque[Part] = deque()
        # A lower bound of all deadlines: before it no row has expired.
        self._first_over_ns = NEVER_NS

    def add(self, part: Part, first_deadline_ns: int) -> None:
        """Add rows; `first_deadline_ns` is a lower bound of their deadlines."""
        self.add_all((part,), first_deadline_ns)

    def add_all(self, parts: Collection[Part], first_deadline_ns: int) -> None:
        """As `add`, for several parts."""
        self.parts.extend(parts)
        self.rows += sum([part.rows for part in parts])
        self._first_over_ns = min(self._first_over_ns, first_deadline_ns)

    def take_first(self, rows: int) -> list[Part]:
        """Remove and return the first rows."""
        self.rows -= rows
        return cut(self.parts, rows)

    def any_over(self, now_ns: int) -> bool:
        """Whether the deadline of a row may have passed."""
        return self._first_over_ns <= now_ns

    def take_over(self, now_ns: int) -> list[Part]:
        """Remove and return the rows whose deadlines have passed."""
        if not self.any_over(now_ns):
            return []
        parts, over = self.parts, []
        self.clear()
        for part in parts:
            late = part.deadline_ns <= now_ns
            if late.any():
                over.append(part.part(late))
            if not late.all():
                kept = part.part(~late) if late.any() else part
                self.add(kept, least(kept.deadline_ns))
        return over

    def first_deadline_ns(self, rows: int) -> int:
        """The earliest deadline of the first `rows` rows."""
        parts = deque(self.parts)
        return min(least(part.deadline_ns) for part in cut(parts, rows))

    def refresh(self, deadlines: Deadlines) -> None:
        """Read again which rows have been cancelled."""
        for part in self.parts:
            if _refreshed(part, deadlines):
                self._first_over_ns = min(self._first_over_ns, least(part.deadline_ns))

    def drop_lane(self, lane: int) -> None:
        """Remove the rows of a lane."""
        parts = self.parts
        self.clear()
        for part in without_lane(parts, lane):
            self.add(part, least(part.deadline_ns))

    def clear(self) -> None:
        """Remove all rows."""
        self.rows, self.parts, self._first_over_ns = 0, deque(), NEVER_NS


def cut(parts: deque[_Part], rows: int) -> list[_Part]:
    """Remove and return the first rows of some parts."""
    first: list[_Part] = []
    while rows:
        part = parts.popleft()
        count = part.rows
        if count > rows:
            first.append(part.between(0, rows))
            parts.appendleft(part.between(rows, count))
            break
        first.append(part)
        rows -= count
    return first


def without_lane(parts: Iterable[Part], lane: int) -> list[Part]:
    """Parts without the rows of a lane."""
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, Lot):
            if part.lane != lane:
                kept.append(part)
            continue
        others = part.columns[LANE] != lane
        if others.any():
            kept.append(part.part(others))
    return kept


def _refreshed(part: Part, deadlines: Deadlines) -> bool:
    """Update the deadlines of the rows; returns whether any has changed."""
    if isinstance(part, Lot):
        return _rewritten(part.deadline_ns, deadlines(part.lane, part.numbers))
    lanes, numbers = part.columns[LANE], part.columns[NUMBER]
    now = np.empty(len(lanes), np.int64)
    for lane in set(lanes.tolist()):
        mine = lanes == lane
        now[mine] = deadlines(lane, numbers[mine])
    return _rewritten(part.deadline_ns, now)


def _rewritten(before: np.ndarray, now: np.ndarray) -> bool:
    if (before == now).all():
        return False
    before[:] = now
    return True
