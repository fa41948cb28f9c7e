"""The waiting rows of a model: in blocks as they arrived, and, where that matters, sorted by due time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker.arena import CALLER_BITS, CALLER_MASK, NORMAL, TIER_MASK, WEIGHT_BITS, caller_of
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.due_order import DueOrder
from stoker.device.late_rows import LateRows
from stoker.device.row_blocks import (
    NEVER_NS,
    Deadlines,
    Part,
    RowBlock,
    due_of,
    greatest,
    least,
    placed_of,
    split_into_blocks,
    with_sizes,
    without_lane,
)
from stoker.device.shares import Shares


@dataclass(slots=True)
class RowQueue:
    """The waiting rows of a model.

    Attributes:
        blocks: Unsorted rows, as they arrived.
        rows: How many rows there are in total, including late ones and those to be handed back.
        virtual_time: See `stoker.device.scheduler`.
        order: Rows with targets that were left waiting, sorted.
        late: Rows that will miss their targets.
        unrun: Rows that the next plan hands back without running them.
        late_limit_rows: Most late rows; beyond that, the oldest are handed back.
        has_targets: Whether a row with a target of its own has ever come.
        shares: The device time that classes have used; None until a row has a caller or an urgency.
        all_hopeless: Whether no waiting row was found to be in time, although some would be if batches took no
            time.
        longest_rows: The most rows of one request, as far as sizes are known.
        decided: The last decision and its arguments, if not carried out yet; None if rows have changed since.
    """

    blocks: deque[RowBlock] = field(default_factory=deque)
    rows: int = 0
    virtual_time: int = 0
    order: DueOrder = field(default_factory=DueOrder)
    late: LateRows = field(default_factory=LateRows)
    unrun: list[Part] = field(default_factory=list)
    late_limit_rows: int = 1 << 20
    has_targets: bool = False
    longest_rows: int = 1
    all_hopeless: bool = False
    shares: Shares | None = None
    decided: tuple[Any, ...] | None = None
    # Lower bounds of the deadlines and of the targets of the blocks, and whether a block has no targets.
    _first_deadline_ns: int = NEVER_NS
    _first_target_ns: int = NEVER_NS
    _lacks_targets: bool = False

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
            target_ns: When their answers stop being of use; 0 for rows without a target. None uses the policy's
                target for all.
            size: The size of each row's request; None if all rows of their requests are here.
            tier: 0 for high, 1 for normal, 2 for low; None if all are normal.
            caller: The caller of each; None if all are of the caller 0.
        """
        if not len(numbers):
            return
        placed = None
        if tier is not None or caller is not None:
            placed = np.zeros(len(numbers), np.int64) + (NORMAL if tier is None else tier << CALLER_BITS)
            if caller is not None:
                placed |= caller
            self.shares = self.shares or Shares()
        block = RowBlock(
            lane, numbers, position, enqueued_ns, deadline_ns, self.virtual_time, target_ns, size, placed
        )
        self.blocks.append(block)
        self.rows += len(numbers)
        self.decided = None
        self._note_times(block)
        if target_ns is not None and not self.has_targets:
            self.has_targets = bool(target_ns.any())
        if size is not None:
            self.longest_rows = max(self.longest_rows, greatest(size))

    @property
    def first_deadline_ns(self) -> int:
        """A lower bound of the deadlines of the blocks."""
        return self._first_deadline_ns

    def leave(self, blocks: deque[RowBlock], rows: int) -> None:
        """Keep the rest of the blocks after this many rows were removed."""
        self.blocks = blocks
        self.rows -= rows
        self.decided = None

    def copy_blocks(self) -> RowQueue:
        """Return a queue with the same blocks for a trial, without late rows and rows in order."""
        queue = RowQueue(deque(self.blocks), self.rows, self.virtual_time)
        queue._first_deadline_ns = self._first_deadline_ns  # of its own class
        if self.shares is not None:
            queue.shares = self.shares.copy()
        return queue

    def first_due_ns(self, target_ns: int) -> int:
        """When the first row that is not late is due; `target_ns` is the target of rows without one of their own."""
        due_ns = min(self._first_deadline_ns, self._first_target_ns)
        if self._lacks_targets and target_ns:
            enqueued_ns = (least(block.enqueued_ns) for block in self.blocks if block.target_ns is None)
            due_ns = min(due_ns, min(enqueued_ns) + target_ns)
        return min(due_ns, int(self.order.due_ns[0])) if len(self.order) else due_ns

    def oldest_ns(self) -> int:
        """When the oldest row that is not late was queued."""
        return min(least(part.enqueued_ns) for part in (*self.blocks, *self.order.parts))

    def drop_lane(self, lane: int) -> int:
        """Remove the rows of a lane whose frontend has gone; returns how many."""
        before = self.rows
        self.keep_blocks(block for block in self.blocks if block.lane != lane)
        self.order.drop_lane(lane)
        self.late.drop_lane(lane)
        self.unrun = without_lane(self.unrun, lane)
        self.recount()
        return before - self.rows

    def take_all(self) -> list[RowBlock]:
        """Remove and return all rows."""
        blocks = list(self.blocks)
        if self.order.parts or self.late.rows or self.unrun:
            blocks += split_into_blocks((*self.order.parts, *self.late.parts, *self.unrun))
            self.order, self.unrun = DueOrder(), []
            self.late.clear()
        self._clear_blocks()
        self.rows = 0
        return blocks

    def take_in_time(self) -> list[RowBlock]:
        """Remove and return all rows that are not late."""
        rows = self.late.rows
        blocks = list(self.blocks)
        if len(self.order):
            blocks = [*split_into_blocks(self.order.take_first(len(self.order))), *blocks]
        self._clear_blocks()
        self.rows = rows
        return blocks

    def keep_blocks(self, blocks: Iterable[RowBlock]) -> None:
        """Replace the unsorted blocks by these."""
        self._clear_blocks()
        for block in blocks:
            self.blocks.append(block)
            self._note_times(block)

    def refresh(self, deadlines: Deadlines) -> None:
        """Read again which rows have been cancelled.

        Args:
            deadlines: Returns the present deadlines of a lane's rows, given its key and their numbers.
        """
        self._first_deadline_ns = NEVER_NS
        for block in self.blocks:
            block.deadline_ns[:] = deadlines(block.lane, block.numbers)
            self._first_deadline_ns = min(self._first_deadline_ns, least(block.deadline_ns))
        if self.order.parts:
            self.order.refresh(deadlines)
        if self.late.rows:
            self.late.refresh(deadlines)
        self.decided = None

    def sort_in(self, target_ns: int) -> DueOrder:
        """Sort the blocks in; `target_ns` is the target of rows without one of their own."""
        if self.blocks:
            blocks: Sequence[RowBlock] = list(self.blocks)
            first_ns = self._first_deadline_ns
            due_ns, ascending = due_of(blocks, target_ns, first_ns, self._first_target_ns)
            whole = with_sizes(blocks) if self.longest_rows > 1 else blocks
            self.order.add(whole, due_ns, first_ns, ascending=ascending)
            self._clear_blocks()
        return self.order

    def give_up(self, parts: Collection[Part], until_ns: int, *, late: bool) -> None:
        """Move rows that miss their targets, and are not in `order` any more, to `late` or `unrun`.

        Args:
            until_ns: Rows with earlier deadlines have expired.
            late: Whether the others may be late; if not, they are handed back too.
        """
        if not late:
            self.unrun += parts
            return
        first_ns = self.order.first_deadline_ns
        if first_ns >= until_ns:
            self.late.add_all(parts, first_ns)
            parts = ()
        for part in parts:
            expired = part.deadline_ns < until_ns
            if expired.any():
                self.unrun.append(part.part(expired))
            if not expired.all():
                self.late.add(part.part(~expired), until_ns)
        too_many = self.late.rows - self.late_limit_rows
        if too_many > 0:
            self.unrun += self.late.take_first(too_many)

    def take_unrun(self) -> list[RowBlock]:
        """Remove and return the rows that are to be handed back."""
        if not self.unrun:
            return []
        blocks, self.unrun = split_into_blocks(self.unrun), []
        return blocks

    @property
    def waiting(self) -> dict[int, int]:
        """How many rows wait for their targets, by class; late rows are not counted."""
        if self.shares is None:
            return {NORMAL: self.rows - self.late.rows - sum(part.rows for part in self.unrun)}
        placed = [placed_of(part) for part in (*self.blocks, *self.order.parts)]
        if not placed:
            return {}
        values, counts = np.unique(np.concatenate(placed), return_counts=True)
        return dict(zip(values.tolist(), counts.tolist(), strict=True))

    def recount(self) -> None:
        """Count the rows again."""
        waiting = sum(len(block.numbers) for block in self.blocks) + len(self.order)
        self.rows = waiting + self.late.rows + sum(part.rows for part in self.unrun)

    def _clear_blocks(self) -> None:
        self.blocks = deque()
        self.decided = None
        self._first_deadline_ns = self._first_target_ns = NEVER_NS
        self._lacks_targets = False

    def _note_times(self, block: RowBlock) -> None:
        self._first_deadline_ns = min(self._first_deadline_ns, least(block.deadline_ns))
        if block.target_ns is None:
            self._lacks_targets = True
        else:
            self._first_target_ns = min(self._first_target_ns, least(block.target_ns))


def push_rows(
    queue: RowQueue,
    lane: int,
    numbers: np.ndarray,
    queued: np.ndarray,
    policy: BatchPolicy,
    *,
    has_urgencies: bool,
) -> None:
    """Queue rows of a frontend; uses `push_with_urgency` if the frontend writes caller and urgency."""
    if has_urgencies:
        push_with_urgency(queue, lane, numbers, queued, policy)
    else:
        queue.push(lane, numbers, deadline_ns=queued[:, 0], enqueued_ns=queued[:, 1], position=queued[:, 2])


def push_with_urgency(
    queue: RowQueue, lane: int, numbers: np.ndarray, queued: np.ndarray, policy: BatchPolicy
) -> None:
    """Queue rows.

    Args:
        lane: Key of their lane.
        numbers: Row numbers.
        queued: The rows' columns in the arena, `int64[rows, 6]`; see `stoker.arena`.
        policy: The settings of batching, to which the weights of the rows' callers are added.
    """
    deadline_ns, enqueued_ns, position, target_ns, size, placed = queued.T
    if policy.target_ms is not None and not target_ns.all():
        target_ns = np.where(target_ns, target_ns, enqueued_ns + round(policy.target_ms * 1e6))
    # While no row has a caller or a tier, the scheduler need not look at them.
    apart = queue.shares is not None or bool((placed != NORMAL).any())
    if apart:
        for value in {*placed.tolist()}:
            policy.weights[caller_of(value)] = (value >> WEIGHT_BITS) / 1000 or 1.0
    queue.push(
        lane,
        numbers,
        position,
        enqueued_ns,
        deadline_ns,
        target_ns=None if policy.target_ms is None else target_ns,
        size=None if policy.target_ms is None else size,
        tier=placed >> CALLER_BITS & TIER_MASK if apart else None,
        caller=placed & CALLER_MASK if apart else None,
    )


def callers_of(blocks: Sequence[RowBlock]) -> dict[int, int]:
    """How many of these rows each caller has, by caller number."""
    counts: dict[int, int] = {}
    for block in blocks:
        if block.placed is None:
            counts[0] = counts.get(0, 0) + block.rows
            continue
        rows_by_caller = np.bincount(block.placed & CALLER_MASK)
        for caller in np.flatnonzero(rows_by_caller).tolist():
            counts[caller] = counts.get(caller, 0) + int(rows_by_caller[caller])
    return counts
