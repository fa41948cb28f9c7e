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

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from stoker.arena import CALLER_BITS, caller_of, tier_of
from stoker.device.batch_sizes import ServiceTimes, worthwhile
from stoker.device.batching import BatchPolicy
from stoker.device.row_blocks import RowBlock, placed_of
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


TIER_FLOOR: Final = 0.05
"""The share of device time that lower tiers get while their rows wait, even if higher tiers always have rows."""
_SEEN_NS: Final = 1_000_000_000
"""How long after its last row a tier is still taken into account."""


@dataclass(slots=True)
class Shares:
    """The device time that the classes of one model have used in one device process.

    Attributes:
        used_ns: The virtual time of each class that ever waited.
        waiting: The classes that waited behind the last batch.
        level_ns: By tier, the least virtual time among the classes that waited: a returning class starts at least
            there.
        seen: By tier, when a row of it last waited, and the smallest target of such rows then.
        owed_ns: Guaranteed device time that rows of lower tiers have not had yet.
    """

    used_ns: dict[int, float] = field(default_factory=dict)
    waiting: frozenset[int] = frozenset()
    level_ns: dict[int, float] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    owed_ns: float = 0.0

    def copy(self) -> Shares:
        """A copy for a trial."""
        return dataclasses.replace(
            self, used_ns=dict(self.used_ns), level_ns=dict(self.level_ns), seen=dict(self.seen)
        )

    def see(self, now_ns: int, targets_ns: Mapping[int, int]) -> None:
        """Record which tiers wait now, each with the smallest target of its rows."""
        for tier, target_ns in targets_ns.items():
            known = self.seen.get(tier)
            # Rows with shorter targets may come again.
            recent = known is not None and now_ns - known[0] < _SEEN_NS
            smallest_ns = min(target_ns, known[1]) if recent and known is not None else target_ns
            self.seen[tier] = (now_ns, smallest_ns)

    def target_above_ns(self, now_ns: int, tier: int) -> int | None:
        """The smallest target of rows of higher tiers that wait now or did in the last second.

        None if there are none.
        """
        targets = [
            target_ns
            for other, (at_ns, target_ns) in self.seen.items()
            if other < tier and now_ns - at_ns < _SEEN_NS
        ]
        return min(targets, default=None)

    def virtual_ns(self, placed: int) -> float:
        """The virtual time of a class that waits now."""
        used_ns = self.used_ns.get(placed, 0.0)
        return used_ns if placed in self.waiting else max(used_ns, self.level_ns.get(tier_of(placed), 0.0))

    def divide(
        self, counts: Mapping[int, int], rows: int, row_ns: float, weights: Mapping[int, float]
    ) -> dict[int, int]:
        """How many rows of each class are in the next batch: each row is of the class with the least virtual time.

        Args:
            counts: How many rows wait by class; all classes must be of one tier.
            rows: The room in the batch.
            row_ns: Device time of a row.
            weights: Weights of callers.
        """
        if sum(counts.values()) <= rows:
            return dict(counts)
        if len(counts) == 1:
            return dict.fromkeys(counts, rows)
        classes = list(counts)
        virtual_ns = [self.virtual_ns(placed) for placed in classes]
        # Relative to the least: after months a row's time is lost in the precision of the sum.
        least_ns = min(virtual_ns)
        begins = [begin_ns - least_ns for begin_ns in virtual_ns]
        steps = [max(1.0, row_ns) / _weight(weights, placed) for placed in classes]
        most = [counts[placed] for placed in classes]
        lines = list(zip(begins, steps, most, strict=True))
        level = _level(lines, rows)
        # Whole rows that lift each class to at most this level. If virtual times are so far apart that a row's time
        # is lost in precision, the level is some rows off, but the room is still used.
        left, taken = rows, []
        for begin, step, upto in lines:
            more = min(left, int(min(max(0.0, (level - begin) / step), upto) + 1e-9))
            taken.append(more)
            left -= more
        while (missing := rows - sum(taken)) > 0:
            places = [place for place, upto in enumerate(most) if taken[place] < upto]
            places.sort(key=lambda place: begins[place] + taken[place] * steps[place])
            for place in places[:missing]:
                taken[place] += 1
        return dict(zip(classes, taken, strict=True))

    def charge(
        self,
        served: Mapping[int, int],
        left: Collection[int],
        cost_ns: int,
        policy_weights: Mapping[int, float],
    ) -> None:
        """Charge a batch that leaves.

        Args:
            served: How many of its rows each class has.
            left: The classes that still wait.
            cost_ns: The expected time of the batch.
            policy_weights: Weights of callers.
        """
        row_ns = max(1.0, cost_ns / max(1, sum(served.values())))
        begun = {placed: self.virtual_ns(placed) for placed in {*served, *left}}
        least_ns: dict[int, float] = {}
        for placed, virtual_ns in begun.items():
            tier = tier_of(placed)
            least_ns[tier] = min(least_ns.get(tier, virtual_ns), virtual_ns)
            self.used_ns[placed] = virtual_ns + served.get(placed, 0) * row_ns / _weight(
                policy_weights, placed
            )
        for tier, least in least_ns.items():
            self.level_ns[tier] = max(self.level_ns.get(tier, 0.0), least)
        self.waiting = frozenset(left)
        if len(least_ns) == 1:
            self.owed_ns = min(0.0, self.owed_ns)
        else:
            self._owe(served, min(least_ns), row_ns)

    def _owe(self, served: Mapping[int, int], highest: int, row_ns: float) -> None:
        lower_rows = sum(rows for placed, rows in served.items() if tier_of(placed) > highest)
        all_ns = row_ns * sum(served.values())
        # Time beyond it is not charged: using room that nobody else needs is no advance.
        self.owed_ns = max(-all_ns, self.owed_ns + TIER_FLOOR * all_ns - lower_rows * row_ns)


def _weight(weights: Mapping[int, float], placed: int) -> float:
    return weights.get(caller_of(placed), 1.0)


def _level(lines: Iterable[tuple[float, float, int]], rows: int) -> float:
    """The virtual time to which this many rows lift the classes, if rows were divisible.

    Args:
        lines: For each class its virtual time, the increase per row, and its number of rows.
        rows: Fewer than all of them.
    """
    marks = [
        mark for begin, step, most in lines for mark in ((begin, 1 / step), (begin + most * step, -1 / step))
    ]
    marks.sort()
    level = filled = rate = 0.0
    for mark, change in marks:
        more = rate * (mark - level)
        if filled + more >= rows:
            return level + (rows - filled) / rate
        level, filled, rate = mark, filled + more, rate + change
    return level
