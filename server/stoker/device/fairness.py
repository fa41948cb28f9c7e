"""The choice of the rows that leave next when several callers or tiers wait.

1. Rows of the highest waiting tier come first: the largest feasible batch that takes no longer than half of the
   smallest target, so that a caller who has just missed it is in the next one.
2. Each next row is one of the caller with the least device time so far (start-time fair queueing, decision 5).
3. Lower tiers get the room that is left, as long as no higher row is late by it and the batch takes at most half of
   the smallest target of a higher tier. The limit also holds for a second after the last higher row.
4. Waiting lower tiers are owed the share `TIER_FLOOR` of the device's time: once they are owed half of a batch, the
   next batch is theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.arena import CALLER_BITS, tier_of
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import ServiceTimes, worthwhile
from stoker.device.row_blocks import RowBlock, placed_of
from stoker.device.shares import Shares
from stoker.device.targets import largest_feasible, largest_within, numbers_of

NEVER_NS: Final = 1 << 61
"""Due time of rows without targets."""
_MANY: Final = 512
"""From this many rows on, sorting is faster than counting one by one."""
_LEAST_PART: Final = 4
"""A caller's own target shortens batches to no less than this part of what the model's target allows."""


class Candidates(NamedTuple):
    """Waiting rows.

    Attributes:
        places: Their indices in the queue, in the order in which rows of one class run, `int64[rows]`.
        placed: The class of each.
        due: The due time of each, ascending.
    """

    places: np.ndarray
    placed: np.ndarray
    due: np.ndarray

    def where(self, mask: np.ndarray) -> Candidates:
        """The rows where `mask`, `bool[rows]`, is True."""
        return Candidates(self.places[mask], self.placed[mask], self.due[mask])

    def since(self, due_ns: int) -> Candidates:
        """The rows that are due at this time or later."""
        first = int(self.due.searchsorted(due_ns))
        return Candidates(self.places[first:], self.placed[first:], self.due[first:]) if first else self


class _Turn(NamedTuple):
    """The values that are the same in all steps of one decision.

    Attributes:
        shares: What classes have used of the device.
        policy: The settings of batching.
        costs_ns: Expected times of batches of 0 rows up to the most.
        free_ns: When the device is free.
        block_rows: The most rows of a batch with rows of a lower tier.
    """

    shares: Shares
    policy: BatchPolicy
    costs_ns: Sequence[int]
    free_ns: int
    block_rows: int


def classes_of(placed: np.ndarray) -> dict[int, int]:
    """How many rows each class has, higher tiers first; there must be at least one row."""
    first = int(placed.min())
    if tier_of(first) == tier_of(int(placed.max())):
        # There are few callers, and they are numbered from 0.
        counts = np.bincount(placed - first)
        values = counts.nonzero()[0]
        return dict(zip((values + first).tolist(), counts[values].tolist(), strict=True))
    if len(placed) <= _MANY:
        return dict(sorted(Counter(placed.tolist()).items()))
    values, counts = np.unique(placed, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def served_of(batch: Sequence[RowBlock]) -> dict[int, int]:
    """How many rows of each class a batch has."""
    return classes_of(np.concatenate([placed_of(block) for block in batch]))


def pick(
    shares: Shares,
    rows: Candidates,
    lasts_ns: np.ndarray,
    now_ns: int,
    free_ns: int,
    policy: BatchPolicy,
    times: ServiceTimes,
    costs_ns: Sequence[int],
) -> np.ndarray | None:
    """Choose a batch.

    Args:
        shares: What classes have used of the device.
        rows: The waiting rows, all of which can still be in time.
        lasts_ns: The target of each row, as a duration from when it was queued.
        free_ns: When the device is free.
        costs_ns: Expected times of batches of 0 rows up to the most.

    Returns:
        The places of its rows, ascending; None if one class waits and no higher one is to be reckoned with: there is
            nothing to choose then.
    """
    classes = classes_of(rows.placed)
    tiers = sorted({tier_of(placed) for placed in classes})
    at_least_ns = 0 if policy.target_ms is None else round(policy.target_ms * 1e6) // _LEAST_PART
    least_ns = max(at_least_ns, int(lasts_ns.min()))
    if len(tiers) == 1:
        shares.see(now_ns, {tiers[0]: least_ns})
    else:
        of = rows.placed >> CALLER_BITS
        shares.see(now_ns, {tier: max(at_least_ns, int(lasts_ns[of == tier].min())) for tier in tiers})
    missed = shares.target_above_ns(now_ns, tiers[0]) is not None
    if len(classes) == 1 and not missed:
        return None
    limit = largest_within(least_ns // 2, costs_ns) if len(classes) > 1 else len(costs_ns) - 1
    above_ns = shares.target_above_ns(now_ns, tiers[-1])
    block_ns = NEVER_NS if above_ns is None else above_ns // 2
    turn = _Turn(shares, policy, costs_ns, free_ns, min(limit, largest_within(block_ns, costs_ns)))
    chosen = _owed(turn, rows, tiers[1:])
    if chosen is None:
        chosen = _from_the_top(turn, rows, tiers, turn.block_rows if missed else limit)
    places = chosen.places[: worthwhile(len(chosen.places), policy.buckets, times)].copy()
    places.sort()
    return places


def _from_the_top(turn: _Turn, rows: Candidates, tiers: Sequence[int], limit: int) -> Candidates:
    """A batch of rows of these tiers, filled from the highest tier on, in it those rows first that matter most."""
    if len(tiers) == 1:
        return _of_tier(turn, rows, limit)
    of = rows.placed >> CALLER_BITS
    chosen = _of_tier(turn, rows.where(of == tiers[0]), limit)
    for tier in tiers[1:]:
        # As long as no row of a higher tier becomes late by it.
        longest = largest_within(int(chosen.due.min()) - turn.free_ns, turn.costs_ns)
        room = min(turn.block_rows, longest) - len(chosen.places)
        if room > 0:
            more = _of_tier(turn, rows.where(of == tier), room, len(chosen.places))
            chosen = Candidates(*(np.concatenate(both) for both in zip(chosen, more, strict=True)))
    return chosen


def _of_tier(turn: _Turn, rows: Candidates, room: int, beside: int = 0) -> Candidates:
    """The largest batch of one tier that is in time, given how many rows are in the batch already."""
    costs_ns = turn.costs_ns[beside : beside + room + 1]
    count = largest_feasible(numbers_of(rows.due), turn.free_ns, costs_ns)
    if not count:
        return rows.where(np.zeros(len(rows.places), bool))
    feasible = rows.since(turn.free_ns + costs_ns[count])
    if count == len(feasible.places):
        return feasible
    row_ns = costs_ns[count] / (beside + count)
    parts = turn.shares.divide(classes_of(feasible.placed), count, row_ns, turn.policy.weights)
    taken = np.zeros(len(feasible.places), bool)
    for placed, part in parts.items():
        taken[(feasible.placed == placed).nonzero()[0][:part]] = True
    return feasible.where(taken)


def _owed(turn: _Turn, rows: Candidates, lower: Sequence[int]) -> Candidates | None:
    """A batch of lower tiers that have not had their guaranteed share; None if they have."""
    owed_ns = turn.shares.owed_ns
    if owed_ns <= 0 or not lower:
        return None
    of_lower = rows.where(rows.placed >= lower[0] << CALLER_BITS)
    batch = _from_the_top(turn, of_lower, lower, turn.block_rows)
    # The least that is charged for a row, if its time is not known yet.
    cost_ns = max(len(batch.places), turn.costs_ns[len(batch.places)])
    # Half of it, so that they are above their share as often as below.
    return batch if owed_ns >= cost_ns / 2 else None
