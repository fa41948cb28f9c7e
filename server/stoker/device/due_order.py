"""Waiting rows sorted by the time at which their answers are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np

from stoker.device.row_blocks import (
    DEADLINE,
    DUE,
    LANE,
    NEVER_NS,
    Deadlines,
    Part,
    RowBlock,
    Table,
    cut,
    join_parts,
    refresh_deadlines,
)

_NOTHING: Final = np.empty(0, np.int64)


class DueOrder:
    """Rows sorted by due time.

    Attributes:
        due_ns: The due time of each row, `int64[rows]`, ascending.
        parts: The rows.
        first_deadline_ns: A lower bound of all deadlines.
    """

    __slots__ = ("due_ns", "first_deadline_ns", "parts")

    def __init__(self) -> None:
        self.parts: deque[Part] = deque()
        self.due_ns = _NOTHING
        self.first_deadline_ns = NEVER_NS

    def __len__(self) -> int:
        return len(self.due_ns)

    def add(
        self, blocks: Iterable[RowBlock], due_ns: np.ndarray, first_deadline_ns: int, *, ascending: bool
    ) -> None:
        """Insert blocks; of rows that are due at the same time those that came first stay first.

        Args:
            due_ns: The due time of each row.
            first_deadline_ns: A lower bound of their deadlines.
            ascending: Whether `due_ns` is ascending.
        """
        if len(self.due_ns):
            first_deadline_ns = min(first_deadline_ns, self.first_deadline_ns)
        self.first_deadline_ns = first_deadline_ns
        if not len(self.due_ns):
            if ascending:
                self.parts, self.due_ns = deque(blocks), due_ns
                return
            self._sort([*blocks], due_ns)
            return
        if ascending and due_ns[0] >= self.due_ns[-1]:
            self.parts.extend(blocks)
            self.due_ns = np.concatenate((self.due_ns, due_ns))
            return
        place = int(self.due_ns.searchsorted(due_ns.min(), side="right"))
        first, known_ns = cut(self.parts, place), self.due_ns
        self._sort([*self.parts, *blocks], np.concatenate((known_ns[place:], due_ns)))
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
        table = join_parts(self.parts, self.due_ns)
        self.parts, self.due_ns = deque((Table(table),)), table[DUE]
        return table

    def replace(self, table: np.ndarray) -> None:
        """Keep only these rows, given as a table that is ascending in `DUE`."""
        self.parts, self.due_ns = deque((Table(table),) if table.shape[1] else ()), table[DUE]

    def refresh(self, deadlines: Deadlines) -> None:
        """Read again which rows have been cancelled: they are due at once."""
        changed = [refresh_deadlines(part, deadlines) for part in self.parts]
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
        self.replace(join_parts(parts, due_ns)[:, order])
