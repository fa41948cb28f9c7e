"""Waiting rows, as parts: a block as it arrived, or a table of rows of several blocks.

A *table* has one column per row, `int64[FIELDS, rows]`. Rows that leave are mostly contiguous, so that nothing is
copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np

from stoker.arena import NORMAL

NUMBER, LANE, POSITION, ENQUEUED, DEADLINE, DUE, SIZE, PLACED = range(8)
_FIELDS: Final = 8
NEVER_NS: Final = (1 << 63) - 1
_FEW: Final = 32
"""Up to this many numbers a Python loop is faster than numpy."""


class RowBlock(NamedTuple):
    """Rows of one lane (one frontend's arena).

    Attributes:
        lane: Key of the lane.
        numbers: Row numbers, `int32[rows]`.
        position: Place of each row within its request, `int64[rows]`.
        enqueued_ns: When the frontend queued them, `int64[rows]`.
        deadline_ns: When their callers stop waiting, `int64[rows]`; 0 for cancelled rows.
        arrived: The queue's virtual time when they arrived.
        target_ns: When their answers stop being of use, `int64[rows]`, 0: at their deadline; None if none has a
            target.
        size: Rows of the whole request of each, `int64[rows]`; None if all of them are in this block.
        placed: Tier and caller of each, `tier << 16 | caller` as `int64[rows]`; None if all are normal rows of the
            caller 0.
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

    def part(self, mask: np.ndarray) -> RowBlock:
        """The rows where the boolean `mask` is set."""
        return self._select(mask)

    def between(self, start: int, stop: int) -> RowBlock:
        """The rows from place `start` up to before place `stop`."""
        if start == 0 and stop == len(self.numbers):
            return self
        return self._select(slice(start, stop))

    def _select(self, places: np.ndarray | slice) -> RowBlock:
        return RowBlock(
            self.lane,
            self.numbers[places],
            self.position[places],
            self.enqueued_ns[places],
            self.deadline_ns[places],
            self.arrived,
            None if self.target_ns is None else self.target_ns[places],
            None if self.size is None else self.size[places],
            None if self.placed is None else self.placed[places],
        )

    def due_ns(self, target_ns: int) -> np.ndarray:
        """When their answers stop being of use, `int64[rows]`; `target_ns` is the target of rows without one."""
        if self.target_ns is None:
            return (
                np.minimum(self.enqueued_ns + target_ns, self.deadline_ns) if target_ns else self.deadline_ns
            )
        due_ns = np.minimum(self.target_ns, self.deadline_ns)
        return due_ns if self.target_ns.all() else np.where(self.target_ns, due_ns, self.deadline_ns)


class Table(NamedTuple):
    """Rows of several blocks, in any order.

    Attributes:
        columns: The fields of each row, `int64[FIELDS, rows]`.
    """

    columns: np.ndarray

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.columns.shape[1])

    @property
    def deadline_ns(self) -> np.ndarray:
        """When their callers stop waiting, `int64[rows]`."""
        deadline_ns: np.ndarray = self.columns[DEADLINE]
        return deadline_ns

    @property
    def enqueued_ns(self) -> np.ndarray:
        """When the frontends queued them, `int64[rows]`."""
        enqueued_ns: np.ndarray = self.columns[ENQUEUED]
        return enqueued_ns

    def part(self, mask: np.ndarray) -> Table:
        """The rows where the boolean `mask` is set."""
        return Table(self.columns[:, mask])

    def between(self, start: int, stop: int) -> Table:
        """The rows from place `start` up to before place `stop`."""
        return Table(self.columns[:, start:stop])


Part = RowBlock | Table

Deadlines = Callable[[int, np.ndarray], np.ndarray]
"""Returns the present deadlines of a lane's rows, given its key and their numbers."""

_Part = TypeVar("_Part", RowBlock, Part)


def split_into_blocks(parts: Iterable[Part]) -> list[RowBlock]:
    """Parts as blocks."""
    blocks: list[RowBlock] = []
    for part in parts:
        if isinstance(part, RowBlock):
            blocks.append(part)
        else:
            blocks += blocks_of(part.columns)
    return blocks


def blocks_of(table: np.ndarray) -> list[RowBlock]:
    """The rows of a table as blocks, one for each lane."""
    lanes = table[LANE]
    if not len(lanes):
        return []
    first = int(lanes[0])
    if (lanes == first).all():
        return [_block(first, table)]
    table = table.take(lanes.argsort(kind="stable"), axis=1)
    lanes = table[LANE]
    ends = [*((lanes[1:] != lanes[:-1]).nonzero()[0] + 1).tolist(), len(lanes)]
    starts = [0, *ends]
    return [_block(int(lanes[start]), table[:, start:end]) for start, end in zip(starts, ends, strict=False)]


def _block(lane: int, table: np.ndarray) -> RowBlock:
    return RowBlock(
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


def cut(parts: deque[_Part], rows: int) -> list[_Part]:
    """Remove and return the first rows of these parts."""
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
        if isinstance(part, RowBlock):
            if part.lane != lane:
                kept.append(part)
            continue
        others = part.columns[LANE] != lane
        if others.any():
            kept.append(part.part(others))
    return kept


def refresh_deadlines(part: Part, deadlines: Deadlines) -> bool:
    """Update the deadlines of the rows; returns whether any has changed."""
    before, now = part.deadline_ns, read_rows(part, deadlines)
    if (before == now).all():
        return False
    before[:] = now
    return True


def read_rows(part: Part, read: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """Read a number of each row, `int64[rows]`; `read` returns those of a lane's rows."""
    if isinstance(part, RowBlock):
        return read(part.lane, part.numbers)
    lanes, numbers = part.columns[LANE], part.columns[NUMBER]
    found = np.empty(len(lanes), np.int64)
    for lane in set(lanes.tolist()):
        of_lane = lanes == lane
        found[of_lane] = read(lane, numbers[of_lane])
    return found


def placed_of(part: Part) -> np.ndarray:
    """Tier and caller of each row, `int64[rows]`."""
    if isinstance(part, Table):
        placed: np.ndarray = part.columns[PLACED]
        return placed
    return np.full(part.rows, NORMAL) if part.placed is None else part.placed


def due_of(
    blocks: Sequence[RowBlock], target_ns: int, first_deadline_ns: int, first_target_ns: int
) -> tuple[np.ndarray, bool]:
    """Due times of blocks, as `RowBlock.due_ns`, and whether they ascend.

    Args:
        blocks: The blocks.
        target_ns: The target of rows without one of their own.
        first_deadline_ns: A lower bound of their deadlines.
        first_target_ns: A lower bound of the targets that rows have.
    """
    targets = [block.target_ns for block in blocks if block.target_ns is not None]
    if len(targets) < len(blocks) or first_target_ns <= 0:
        due_ns = _due_with_default(blocks, targets, target_ns)
        return due_ns, _ascends(due_ns)
    due_ns = targets[0] if len(targets) == 1 else np.concatenate(targets)
    ascends = _ascends(due_ns)
    # If they ascend, the last one is the greatest.
    if (due_ns[-1] if ascends else due_ns.max()) <= first_deadline_ns:
        return due_ns, ascends
    due_ns = np.minimum(due_ns, np.concatenate([block.deadline_ns for block in blocks]))
    return due_ns, _ascends(due_ns)


def _due_with_default(
    blocks: Sequence[RowBlock], targets: Sequence[np.ndarray], target_ns: int
) -> np.ndarray:
    """Due times of blocks in which rows without targets have `target_ns`."""
    due_ns: np.ndarray
    if targets:
        due_ns = np.concatenate([block.due_ns(target_ns) for block in blocks])
        return due_ns
    due_ns = np.concatenate([block.deadline_ns for block in blocks])
    if target_ns:
        due_ns = np.minimum(np.concatenate([block.enqueued_ns for block in blocks]) + target_ns, due_ns)
    return due_ns


def _ascends(times_ns: np.ndarray) -> bool:
    # Counting costs half as much as asking for all or any, if there are few.
    return not np.count_nonzero(times_ns[1:] < times_ns[:-1])


def join_parts(parts: Iterable[Part], due_ns: np.ndarray) -> np.ndarray:
    """Join parts into one table, in their order.

    Args:
        parts: The rows; a single table among them is not copied.
        due_ns: The due time of each row.
    """
    tables: list[np.ndarray] = []
    blocks: list[RowBlock] = []
    for part in parts:
        if isinstance(part, RowBlock):
            blocks.append(part)
            continue
        if blocks:
            tables.append(_table_of(blocks))
            blocks = []
        tables.append(part.columns)
    if blocks:
        tables.append(_table_of(blocks))
    table = tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)
    table[DUE] = due_ns
    return table


def with_sizes(blocks: Iterable[RowBlock]) -> list[RowBlock]:
    """Return whole blocks with the size of each row's request."""
    return [
        block if block.size is not None else block._replace(size=_sizes(block.position)) for block in blocks
    ]


def least(numbers: np.ndarray) -> int:
    """Return the least number; faster than numpy for few."""
    return min(numbers.tolist()) if len(numbers) <= _FEW else int(numbers.min())


def greatest(numbers: np.ndarray) -> int:
    """Return the greatest number; faster than numpy for few."""
    return max(numbers.tolist()) if len(numbers) <= _FEW else int(numbers.max())


def _table_of(blocks: Sequence[RowBlock]) -> np.ndarray:
    """Blocks as a table without `DUE`, in their order."""
    counts = [len(block.numbers) for block in blocks]
    table = np.empty((_FIELDS, sum(counts)), np.int64)
    table[LANE] = np.array([block.lane for block in blocks]).repeat(counts)
    np.concatenate([block.numbers for block in blocks], out=table[NUMBER], casting="unsafe")
    np.concatenate([block.position for block in blocks], out=table[POSITION])
    np.concatenate([block.enqueued_ns for block in blocks], out=table[ENQUEUED])
    np.concatenate([block.deadline_ns for block in blocks], out=table[DEADLINE])
    sizes = [block.size for block in blocks if block.size is not None]
    if len(sizes) == len(blocks):
        np.concatenate(sizes, out=table[SIZE])
    else:
        # Blocks without sizes hold requests of one row: see `with_sizes`.
        np.concatenate(
            [np.ones(len(block.numbers), np.int64) if block.size is None else block.size for block in blocks],
            out=table[SIZE],
        )
    table[PLACED] = NORMAL
    if any(block.placed is not None for block in blocks):
        np.concatenate([placed_of(block) for block in blocks], out=table[PLACED])
    return table


def _sizes(position: np.ndarray) -> np.ndarray:
    """The size of each row's request, computed from the rows' positions: all of its rows are here."""
    ends = np.append(np.flatnonzero(np.diff(position) != 1), len(position) - 1)
    return np.repeat(position[ends] + 1, np.diff(ends, prepend=-1))
