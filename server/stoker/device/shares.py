"""The device time that callers and tiers of one model have used, and how their rows share the next batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stoker.arena import caller_of, tier_of

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
