"""Rows that wait for a device: in lots as they arrived, and once it matters in order of when they are due.

Where rows have targets and do not all leave at once, they lie in a *table*: one column a row, `int64[FIELDS, rows]`,
ascending in `DUE`. What leaves is mostly a run of columns then, and nothing is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from stoker.device.shares import NORMAL, TIER_SHIFT, Shares

__all__ = [
    "DEADLINE",
    "DUE",
    "ENQUEUED",
    "LANE",
    "PLACED",
    "POSITION",
    "SIZE",
    "Lot",
    "RowQueue",
    "lots_of",
    "placed_of",
]

NUMBER, LANE, POSITION, ENQUEUED, DEADLINE, DUE, SIZE, PLACED = range(8)
_FIELDS: Final = 8
_NONE: Final = np.empty((_FIELDS, 0), np.int64)


class Lot(NamedTuple):
    """Rows of one lane (one frontend's arena).

    Attributes:
        lane: Key of the lane.
        numbers: Row numbers, `int32[rows]`.
        position: Place of each row within its request, `int64[rows]`.
        enqueued_ns: When the frontend queued them, `int64[rows]`.
        deadline_ns: When their callers stop waiting, `int64[rows]`; 0 for cancelled rows.
        arrived: The queue's virtual time when they arrived.
        target_ns: Until when their answers are worth something, `int64[rows]`, 0 where that is their deadline; None
            if nothing was said of any.
        size: Rows of the whole request of each, `int64[rows]`; None if all of them are in this lot.
        placed: Tier and caller of each, `tier << 16 | caller` as `int64[rows]`; None if nothing is said of any.
    """

    lane: int
    numbers: np.ndarray
    position: np.ndarray
    enqueued_ns: np.ndarray
    deadline_ns: np.ndarray
    arrived: int
    target_ns: np.ndarray | None = None
    size: np.ndarray | None = None
    placed: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.numbers)

    def part(self, mask: np.ndarray) -> Lot:
        """The rows where the boolean `mask` is set."""
        return self._picked(mask)

    def between(self, start: int, stop: int) -> Lot:
        """The rows from place `start` up to before place `stop`."""
        if start == 0 and stop == len(self.numbers):
            return self
        return self._picked(slice(start, stop))

    def _picked(self, which: np.ndarray | slice) -> Lot:
        return Lot(
            self.lane,
            self.numbers[which],
            self.position[which],
            self.enqueued_ns[which],
            self.deadline_ns[which],
            self.arrived,
            None if self.target_ns is None else self.target_ns[which],
            None if self.size is None else self.size[which],
            None if self.placed is None else self.placed[which],
        )

    def due_ns(self, target_ns: int) -> np.ndarray:
        """Until when their answers are worth something, `int64[rows]`; `target_ns` after they came if not said."""
        if self.target_ns is None:
            return (
                np.minimum(self.enqueued_ns + target_ns, self.deadline_ns) if target_ns else self.deadline_ns
            )
        due_ns = np.minimum(self.target_ns, self.deadline_ns)
        return due_ns if self.target_ns.all() else np.where(self.target_ns, due_ns, self.deadline_ns)


@dataclass(slots=True)
class RowQueue:
    """Rows that wait.

    Attributes:
        lots: Those that are not in the table, as they arrived.
        rows: How many there are, the late ones and those to be handed back among them.
        virtual_time: See `stoker.device.planner`.
        table: Those with targets that were left waiting, ascending in `DUE`.
        late: Those that will miss their targets, in the order in which that was found, as a table.
        over: Those that are to be handed back unrun by the next plan, as a table.
        late_limit_rows: Most rows that may be late; of more, those that came first are given up.
        has_targets: Whether any row has come with a target of its own.
        shares: What its callers have had, once any row has said whose it is, or how urgent; None before.
        all_hopeless: Whether all that waited was found not to be in time, though it would be if batches took no time.
        longest_rows: The most rows of a request, as far as anything was said of that.
    """

    lots: deque[Lot] = field(default_factory=deque)
    rows: int = 0
    virtual_time: int = 0
    table: np.ndarray = field(default_factory=lambda: _NONE)
    late: np.ndarray = field(default_factory=lambda: _NONE)
    over: np.ndarray = field(default_factory=lambda: _NONE)
    late_limit_rows: int = 1 << 20
    has_targets: bool = False
    longest_rows: int = 1
    all_hopeless: bool = False
    shares: Shares | None = None

    def push(
        self,
        lane: int,
        numbers: np.ndarray,
        position: np.ndarray,
        enqueued_ns: np.ndarray,
        deadline_ns: np.ndarray,
        *,
        target_ns: np.ndarray | None = None,
        size: np.ndarray | None = None,
        tier: np.ndarray | None = None,
        caller: np.ndarray | None = None,
    ) -> None:
        """Add rows; all arrays have the same length.

        Args:
            lane: Key of their lane.
            numbers: Row numbers.
            position: Each row's place within its request.
            enqueued_ns: When they were queued.
            deadline_ns: When their callers stop waiting.
            target_ns: Until when their answers are worth something; 0 for those without a target. None leaves that
                to the policy.
            size: How many rows each one's whole request has; None if all of them are here.
            tier: 0 for high, 1 for normal, 2 for low; None if all are normal.
            caller: Whose each is; None if all are of the caller 0.
        """
        placed = None
        if tier is not None or caller is not None:
            placed = np.zeros(len(numbers), np.int64) + (NORMAL if tier is None else tier << TIER_SHIFT)
            if caller is not None:
                placed |= caller
            self.shares = self.shares or Shares()
        self.lots.append(
            Lot(lane, numbers, position, enqueued_ns, deadline_ns, self.virtual_time, target_ns, size, placed)
        )
        self.rows += len(numbers)
        if target_ns is not None and not self.has_targets:
            self.has_targets = bool(target_ns.any())
        if size is not None:
            self.longest_rows = max(self.longest_rows, int(size.max(initial=1)))

    def drop_lane(self, lane: int) -> int:
        """Forget the rows of a lane whose frontend has gone; returns how many."""
        before = self.rows
        self.lots = deque(lot for lot in self.lots if lot.lane != lane)
        if self.table.shape[1]:
            self.table = self.table[:, self.table[LANE] != lane]
        if self.late.shape[1]:
            self.late = self.late[:, self.late[LANE] != lane]
        if self.over.shape[1]:
            self.over = self.over[:, self.over[LANE] != lane]
        self.recount()
        return before - self.rows

    def take_all(self) -> list[Lot]:
        """Remove and return everything."""
        lots = list(self.lots)
        if self.table.shape[1] or self.late.shape[1] or self.over.shape[1]:
            lots += [*lots_of(self.table), *lots_of(self.late), *lots_of(self.over)]
            self.table = self.late = self.over = _NONE
        self.lots, self.rows = deque(), 0
        return lots

    def refresh(self, deadlines: Callable[[int, np.ndarray], np.ndarray]) -> None:
        """See which rows have been given up since they came.

        Args:
            deadlines: Returns the deadlines that rows of a lane have now, given its key and their numbers.
        """
        for lot in self.lots:
            lot.deadline_ns[:] = deadlines(lot.lane, lot.numbers)
        if self.table.shape[1]:
            self.table = _refreshed(self.table, deadlines)
        if self.late.shape[1]:
            self.late = _refreshed(self.late, deadlines)

    def sort_in(self, target_ns: int) -> np.ndarray:
        """Move the lots into the table, and return that; rows of which nothing was said have this target."""
        if self.lots:
            fresh = _table_of(list(self.lots), target_ns)
            self.lots = deque()
            table = np.concatenate((self.table, fresh), axis=1) if self.table.shape[1] else fresh
            self.table = _in_order(table)
        return self.table

    def give_up(self, rows: np.ndarray, until_ns: int, *, late: bool) -> None:
        """Take note that rows, which are in the table no more, miss their targets.

        Args:
            rows: The rows, as a table.
            until_ns: Those with earlier deadlines are over.
            late: Whether the others may be late; if not, they are over too.
        """
        if not late:
            self.over = np.concatenate((self.over, rows), axis=1)
            return
        over = rows[DEADLINE] < until_ns
        if over.any():
            self.over = np.concatenate((self.over, rows[:, over]), axis=1)
            rows = rows[:, ~over]
        self.late = np.concatenate((self.late, rows), axis=1)
        too_many = self.late.shape[1] - self.late_limit_rows
        if too_many > 0:
            self.over = np.concatenate((self.over, self.late[:, :too_many]), axis=1)
            self.late = self.late[:, too_many:]

    def end_late(self, now_ns: int) -> None:
        """Take note of which late rows have passed their deadlines."""
        over = self.late[DEADLINE] <= now_ns
        if over.any():
            self.over = np.concatenate((self.over, self.late[:, over]), axis=1)
            self.late = self.late[:, ~over]

    def take_late(self, rows: int) -> list[Lot]:
        """Remove and return so many of those that were late first."""
        lots, self.late = lots_of(self.late[:, :rows]), self.late[:, rows:]
        return lots

    def take_over(self) -> list[Lot]:
        """Remove and return the rows that are to be handed back."""
        if not self.over.shape[1]:
            return []
        lots, self.over = lots_of(self.over), _NONE
        return lots

    def recount(self) -> None:
        """Count the rows again."""
        tables = self.table.shape[1] + self.late.shape[1] + self.over.shape[1]
        self.rows = sum(len(lot.numbers) for lot in self.lots) + tables


def lots_of(table: np.ndarray) -> list[Lot]:
    """The rows of a table as lots, one for each lane."""
    lanes = table[LANE]
    if not len(lanes):
        return []
    first = int(lanes[0])
    if (lanes == first).all():
        return [_lot(first, table)]
    order = lanes.argsort(kind="stable")
    table = table[:, order]
    lanes = table[LANE]
    ends = [*(np.flatnonzero(lanes[1:] != lanes[:-1]) + 1).tolist(), len(lanes)]
    starts = [0, *ends]
    return [_lot(int(lanes[start]), table[:, start:end]) for start, end in zip(starts, ends, strict=False)]


def _lot(lane: int, table: np.ndarray) -> Lot:
    return Lot(
        lane,
        table[NUMBER].astype(np.int32),
        table[POSITION],
        table[ENQUEUED],
        table[DEADLINE],
        0,
        table[DUE],
        table[SIZE],
        table[PLACED],
    )


def _table_of(lots: Sequence[Lot], target_ns: int) -> np.ndarray:
    """Lots as a table, in the order in which they came."""
    table = np.empty((_FIELDS, sum(len(lot.numbers) for lot in lots)), np.int64)
    if len(lots) == 1:
        only = lots[0]
        table[NUMBER], table[LANE], table[POSITION] = only.numbers, only.lane, only.position
        table[ENQUEUED], table[DEADLINE] = only.enqueued_ns, only.deadline_ns
    else:
        table[LANE] = np.repeat([lot.lane for lot in lots], [len(lot.numbers) for lot in lots])
        np.concatenate([lot.numbers for lot in lots], out=table[NUMBER], casting="unsafe")
        np.concatenate([lot.position for lot in lots], out=table[POSITION])
        np.concatenate([lot.enqueued_ns for lot in lots], out=table[ENQUEUED])
        np.concatenate([lot.deadline_ns for lot in lots], out=table[DEADLINE])
    _write_due(table, lots, target_ns)
    _write_sizes(table, lots)
    table[PLACED] = NORMAL
    if any(lot.placed is not None for lot in lots):
        np.concatenate([placed_of(lot) for lot in lots], out=table[PLACED])
    return table


def placed_of(lot: Lot) -> np.ndarray:
    """Tier and caller of each row, `int64[rows]`."""
    return np.full(len(lot.numbers), NORMAL) if lot.placed is None else lot.placed


def _write_due(table: np.ndarray, lots: Sequence[Lot], target_ns: int) -> None:
    due = table[DUE]
    if all(lot.target_ns is None for lot in lots):
        if target_ns:
            np.minimum(table[ENQUEUED] + target_ns, table[DEADLINE], out=due)
        else:
            due[:] = table[DEADLINE]
        return
    targets = [lot.target_ns for lot in lots if lot.target_ns is not None]
    if len(targets) == len(lots):
        np.concatenate(targets, out=due)
        if due.all():
            np.minimum(due, table[DEADLINE], out=due)
            return
    np.concatenate([lot.due_ns(target_ns) for lot in lots], out=due)


def _write_sizes(table: np.ndarray, lots: Sequence[Lot]) -> None:
    sizes = table[SIZE]
    if all(lot.size is None for lot in lots) and not table[POSITION].any():
        sizes[:] = 1
        return
    start = 0
    for lot in lots:
        stop = start + len(lot.numbers)
        sizes[start:stop] = _sizes(lot.position) if lot.size is None else lot.size
        start = stop


def _sizes(position: np.ndarray) -> np.ndarray:
    """How many rows each row's request has, all of which are here: their places are told."""
    ends = np.append(np.flatnonzero(np.diff(position) != 1), len(position) - 1)
    return np.repeat(position[ends] + 1, np.diff(ends, prepend=-1))


def _in_order(table: np.ndarray) -> np.ndarray:
    due = table[DUE]
    if (due[1:] >= due[:-1]).all():
        return table
    # Stable, so that rows that are due together keep the order of arrival, and requests stay in one piece.
    return table[:, due.argsort(kind="stable")]


def _refreshed(table: np.ndarray, deadlines: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """A table with the deadlines that rows have now; cancelled ones are due at once."""
    lanes, numbers = table[LANE], table[NUMBER]
    now = np.empty(len(lanes), np.int64)
    for lane in set(lanes.tolist()):
        mine = lanes == lane
        now[mine] = deadlines(lane, numbers[mine])
    if (now == table[DEADLINE]).all():
        return table
    table = table.copy()
    table[DEADLINE] = now
    np.minimum(table[DUE], now, out=table[DUE])
    return _in_order(table)
