"""Which rows leave where several callers wait, or rows of several tiers: whose turn it is.

1. Rows of the highest tier that waits are looked at first. Of these the largest feasible batch leaves, but one that
   takes no longer than half of the smallest target, so that a caller who has just missed it is in the next.
2. Which of them: the next row is always of the caller who has had least of the device; see `stoker.device.shares`.
3. What room there is goes to lower tiers, as far as nobody above is late by it, and the batch stays within
   `tier_block_ms`. It does so too while no higher row waits, but one has come in the last second.
4. Lower tiers that wait are owed `tier_floor` of the device's time: once that is half of a batch, that is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.device.plans import BatchPolicy
from stoker.device.row_queue import Lot, placed_of
from stoker.device.service_times import ServiceTimes, worthwhile
from stoker.device.shares import TIER_SHIFT, Shares, tier_of
from stoker.device.targets import largest_feasible, largest_within

__all__ = ["NEVER_NS", "Candidates", "classes_of", "pick", "served_of"]

NEVER_NS: Final = 1 << 61
"""When rows without targets are due."""
_LEAST_PART: Final = 4
"""A caller's own target makes batches as short as such a part of the model's would, at most."""


class Candidates(NamedTuple):
    """Rows that wait.

    Attributes:
        places: Where they are, in the order in which those of one class run, `int64[rows]`.
        placed: The class of each.
        due: Until when each can be answered.
    """

    places: np.ndarray
    placed: np.ndarray
    due: np.ndarray

    def where(self, mask: np.ndarray) -> Candidates:
        """Those where `mask`, `bool[rows]`, is set."""
        return Candidates(self.places[mask], self.placed[mask], self.due[mask])


class _Turn(NamedTuple):
    """What is the same for all steps of one decision.

    Attributes:
        shares: What callers have had.
        policy: Settings of batching.
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
    """How many rows there are of each class, those of higher tiers first."""
    values, counts = np.unique(placed, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def served_of(batch: Sequence[Lot]) -> dict[int, int]:
    """How many rows of each class a batch has."""
    return classes_of(np.concatenate([placed_of(lot) for lot in batch]))


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
        shares: What callers have had.
        rows: The rows that wait, none of them hopeless.
        lasts_ns: How long the answer of each is worth something, from when it came.
        now_ns: The time.
        free_ns: When the device is free.
        policy: Settings of batching.
        times: What batches take.
        costs_ns: That, for 0 rows up to the most.

    Returns:
        The places of its rows, ascending; None if one class waits and no higher one is to be reckoned with: there is
        nothing to choose then.
    """
    classes = classes_of(rows.placed)
    tiers = rows.placed >> TIER_SHIFT
    if policy.target_ms is not None:
        lasts_ns = np.maximum(lasts_ns, round(policy.target_ms * 1e6) // _LEAST_PART)
    shares.see(now_ns, {tier: int(lasts_ns[tiers == tier].min()) for tier in {*map(tier_of, classes)}})
    top, lowest = tier_of(min(classes)), tier_of(max(classes))
    missed = shares.target_above_ns(now_ns, top) is not None
    if len(classes) == 1 and not missed:
        return None
    limit = largest_within(int(lasts_ns.min()) // 2, costs_ns) if len(classes) > 1 else len(costs_ns) - 1
    block_ns = _block_ns(policy, shares.target_above_ns(now_ns, lowest))
    turn = _Turn(shares, policy, costs_ns, free_ns, min(limit, largest_within(block_ns, costs_ns)))
    chosen = _owed(turn, rows, tiers > top)
    if chosen is None:
        chosen = _from_the_top(turn, rows, turn.block_rows if missed else limit)
    places: np.ndarray = np.sort(chosen.places[: worthwhile(len(chosen.places), policy.buckets, times)])
    return places


def _from_the_top(turn: _Turn, rows: Candidates, limit: int) -> Candidates:
    """A batch that begins with the highest tier, those rows first that matter most."""
    tiers = rows.placed >> TIER_SHIFT
    top = int(tiers.min())
    chosen = _of_tier(turn, rows.where(tiers == top), limit)
    for tier in range(top + 1, int(tiers.max()) + 1):
        lower = rows.where(tiers == tier)
        # As long as none of those above is late by it.
        longest = largest_within(int(chosen.due.min()) - turn.free_ns, turn.costs_ns)
        room = min(turn.block_rows, longest) - len(chosen.places)
        if room > 0 and len(lower.places):
            more = _of_tier(turn, lower, room, len(chosen.places))
            chosen = Candidates(*(np.concatenate(both) for both in zip(chosen, more, strict=True)))
    return chosen


def _of_tier(turn: _Turn, rows: Candidates, room: int, beside: int = 0) -> Candidates:
    """The largest feasible batch of one tier, with so many rows in it already."""
    costs_ns = turn.costs_ns[beside : beside + room + 1]
    count = largest_feasible(np.sort(rows.due).tolist(), turn.free_ns, costs_ns)
    feasible = rows.where(rows.due >= turn.free_ns + costs_ns[count])
    if count in (0, len(feasible.places)):
        return feasible.where(np.full(len(feasible.places), bool(count)))
    row_ns = costs_ns[count] / (beside + count)
    parts = turn.shares.divide(classes_of(feasible.placed), count, row_ns, turn.policy.weights)
    taken = np.zeros(len(feasible.places), bool)
    for placed, part in parts.items():
        taken[np.flatnonzero(feasible.placed == placed)[:part]] = True
    return feasible.where(taken)


def _owed(turn: _Turn, rows: Candidates, lower: np.ndarray) -> Candidates | None:
    """A batch of lower tiers that is owed to them; None if it is not their turn."""
    owed_ns = turn.shares.owed_ns
    if owed_ns <= 0 or not lower.any():
        return None
    batch = _from_the_top(turn, rows.where(lower), turn.block_rows)
    # As little as is charged for them, where nothing is known yet.
    cost_ns = max(len(batch.places), turn.costs_ns[len(batch.places)])
    # Half of it: so they have as often more than their part as less.
    return batch if owed_ns >= cost_ns / 2 else None


def _block_ns(policy: BatchPolicy, target_ns: int | None) -> int:
    """How long a batch with rows of a lower tier may take."""
    if policy.tier_block_ms is not None:
        return round(policy.tier_block_ms * 1e6)
    return NEVER_NS if target_ns is None else target_ns // 2
