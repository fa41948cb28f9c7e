"""The report of a worker on its queue, by which frontends refuse requests that would be late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Final

import numpy as np

from stoker.arena import LATER_BATCHES, BoardWriter, caller_of, tier_of
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.device_turns import TurnTaking
from stoker.device.row_blocks import RowBlock
from stoker.device.row_queue import RowQueue

_NOTHING: Final = (0,) * LATER_BATCHES
_BATCHES: Final = np.arange(1, LATER_BATCHES + 1)


def tiers_on_board(waiting: Mapping[int, int]) -> list[int]:
    """How many rows wait, by tier."""
    tiers = [0, 0, 0]
    for placed, rows in waiting.items():
        tiers[tier_of(placed)] += rows
    return tiers


def classes_on_board(waiting: Mapping[int, int], policy: BatchPolicy) -> dict[int, tuple[int, float]]:
    """Rows and weight of each waiting class; empty if only unnamed callers wait, in one tier.

    A single class with a name is reported too: another caller does not have to wait behind all of its rows.
    """
    if len(waiting) < 2 and not any(map(caller_of, waiting)):
        return {}
    return {placed: (rows, policy.weights.get(caller_of(placed), 1.0)) for placed, rows in waiting.items()}


def later_on_board(queue: RowQueue, free_ns: int, full_ns: int) -> Sequence[int]:
    """How many rows are due one full batch after the device is free or later, two, and so on.

    Rows that are not sorted yet count as due last.
    """
    due_ns = queue.order.due_ns
    if not len(due_ns) and not queue.blocks:
        return _NOTHING
    unsorted = sum([len(block.numbers) for block in queue.blocks])
    later: list[int] = (unsorted + len(due_ns) - due_ns.searchsorted(free_ns + full_ns * _BATCHES)).tolist()
    return later


class QueueReporter:
    """The report of one model, written to the boards of all frontends.

    Args:
        instances: The instances that run its batches.
        turn: Its participation in the turns of its device; None if it takes none.
    """

    def __init__(self, instances: Sized, turn: TurnTaking | None = None) -> None:
        self._instances, self._turn = instances, turn
        self._writer = BoardWriter()
        self._pages: list[memoryview] = []
        self._costs_ns: list[int] = []
        self._ends_ns: list[int] = []

    def set_pages(self, pages: Iterable[memoryview]) -> None:
        """Set the boards to write to."""
        self._pages = list(pages)

    def note_end(self) -> None:
        """Record that a batch has ended; may be called on any thread."""
        if self._ends_ns:
            self._ends_ns.remove(min(self._ends_ns))

    def report(
        self,
        queue: RowQueue,
        leaving: Sequence[RowBlock],
        now_ns: int,
        policy: BatchPolicy,
        times: ServiceTimes,
        begins_ns: int | None = None,
    ) -> None:
        """Write the report.

        Args:
            queue: The waiting rows.
            leaving: The batch that leaves now; empty if none does.
            begins_ns: When that batch or the next one begins to run, where batches begin one behind the other; by
                default now, or when one that is running has ended.
        """
        costs_ns = times.costs_ns(policy.max_batch_rows, policy.buckets)
        if costs_ns is not self._costs_ns:
            self._costs_ns = costs_ns
            self._writer.set_times(len(costs_ns) - 1, costs_ns)
        instances, other_ns = len(self._instances), 0
        takes_ns = costs_ns[sum(block.rows for block in leaving)] if leaving else 0
        if begins_ns is not None:
            free_ns = begins_ns + takes_ns
        else:
            if leaving:
                self._ends_ns.append(now_ns + takes_ns)
            free_ns = 0 if len(self._ends_ns) < instances else min(self._ends_ns)
        if self._turn is not None:
            free_ns, other_ns = max(free_ns, self._turn.free_ns), self._turn.other_ns
        waiting = queue.waiting
        self._writer.set_queue(
            tiers_on_board(waiting),
            classes_on_board(waiting, policy),
            later_on_board(queue, max(now_ns, free_ns), costs_ns[-1]),
        )
        self._writer.write(self._pages, now_ns, free_ns, parallel=instances, other_ns=other_ns)
