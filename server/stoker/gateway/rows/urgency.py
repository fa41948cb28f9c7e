"""Whose rows are, and how urgent: what an arena's rows say to the planner of the device."""

from __future__ import annotations

from typing import Final, NamedTuple

from stoker.gateway.rows.quotas import Quota
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.placed import CALLER_BITS, NORMAL_TIER, WEIGHT_BITS
from stoker.settings.lateness import TIERS

__all__ = ["USUAL", "Urgency"]


class Urgency(NamedTuple):
    """What a request says of its rows.

    Attributes:
        tier: 0 for high, 1 for normal, 2 for low.
        caller: Whose they are.
        lasts_ns: How long after its body was received an answer is worth something; 0 until its deadline.
        told: Whether the answer says which tier it has had, because one was asked for.
        quota: What its caller may still send; None for those without a limit.
    """

    tier: int = NORMAL_TIER
    caller: CallerTerms = DEFAULT
    lasts_ns: int = 0
    told: bool = False
    quota: Quota | None = None

    def asking(self, tier: int) -> Urgency:
        """The same for a request that asks for a tier: it has that, or the highest that its caller may ask for."""
        return self._replace(tier=max(tier, TIERS.index(self.caller.max_tier)), told=True)

    @property
    def placed(self) -> int:
        """Tier, caller and the caller's weight, as the column `placed` of an arena has them."""
        weight = round(self.caller.weight * 1000) if self.caller.weight != 1 else 0
        return weight << WEIGHT_BITS | self.tier << CALLER_BITS | self.caller.number

    def lines(self, status: int) -> bytes:
        """The header lines that tell the caller of it, in an answer with this status."""
        lines = b"stoker-tier: %b\r\n" % TIERS[self.tier].encode() if self.told else b""
        return lines if self.quota is None else lines + self.quota.lines(status)


USUAL: Final = Urgency()
"""That of requests of which nobody says anything."""
