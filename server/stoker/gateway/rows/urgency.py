"""Caller and urgency of a request: what its rows tell the planner of the device."""

from __future__ import annotations

from typing import Final, NamedTuple

from stoker.gateway.rows.quotas import Quota
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.placed import CALLER_BITS, NORMAL_TIER, WEIGHT_BITS
from stoker.settings.choices import TIERS

__all__ = ["USUAL", "Urgency"]


class Urgency(NamedTuple):
    """The caller, tier and target of a request.

    Attributes:
        tier: 0 for high, 1 for normal, 2 for low.
        caller: Who sends the request.
        lasts_ns: The target: how long after its body was received an answer is of use; 0: until its deadline.
        told: Whether the answer names the tier that it had, because the request asked for one.
        quota: The caller's quota; None for a caller without limits.
    """

    tier: int = NORMAL_TIER
    caller: CallerTerms = DEFAULT
    lasts_ns: int = 0
    told: bool = False
    quota: Quota | None = None

    def asking(self, tier: int) -> Urgency:
        """The same for a request that asks for a tier; it gets at most the highest that its caller may use."""
        return self._replace(tier=max(tier, TIERS.index(self.caller.max_tier)), told=True)

    @property
    def placed(self) -> int:
        """Tier, caller and the caller's weight, as in the column `placed` of an arena."""
        weight = round(self.caller.weight * 1000) if self.caller.weight != 1 else 0
        return weight << WEIGHT_BITS | self.tier << CALLER_BITS | self.caller.number

    def lines(self, status: int) -> bytes:
        """The header lines with the tier and the limits, for an answer with this status."""
        lines = b"stoker-tier: %b\r\n" % TIERS[self.tier].encode() if self.told else b""
        return lines if self.quota is None else lines + self.quota.lines(status)


USUAL: Final = Urgency()
"""The urgency of requests that say nothing of it."""
