"""What requests say of themselves: how long an answer is worth something, a tier, and their sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias, get_args

from stoker_client.sequences import SEQUENCE

__all__ = ["DEADLINE", "TIER", "Tier", "Urgency"]

Tier: TypeAlias = Literal["high", "normal", "low"]

DEADLINE = "X-Request-Timeout-Ms"
TIER = "Stoker-Tier"
_SHORTEST_MS = 1


@dataclass(frozen=True, slots=True)
class Urgency:
    """What requests say of their patience, and one of its sequence.

    Attributes:
        deadline_s: Seconds from the call on within which an answer is worth something; None if nothing is said.
        tier: The tier that is asked for; None for the model's `default_tier`.
        sequence: Of which sequence a request is, as its header says it; empty for none.
    """

    deadline_s: float | None = None
    tier: Tier | None = None
    sequence: str = ""

    def changed(self, deadline_ms: float | None, tier: Tier | None) -> Self:
        """The same where nothing else is said.

        Raises:
            ValueError: The deadline is not above 0, or there is no such tier.
        """
        if deadline_ms is not None and not deadline_ms > 0:
            raise ValueError(f"deadline_ms has to be above 0, not {deadline_ms}")
        if tier is not None and tier not in get_args(Tier):
            raise ValueError(f"tier has to be high, normal or low, not {tier!r}")
        if deadline_ms is None and tier is None:
            return self
        deadline_s = self.deadline_s if deadline_ms is None else deadline_ms / 1000
        return replace(self, deadline_s=deadline_s, tier=tier or self.tier)

    def within(self, timeout_s: float) -> float:
        """Seconds that a call may take which may take `timeout_s` at most."""
        return timeout_s if self.deadline_s is None else min(timeout_s, self.deadline_s)

    def headers(self, left_s: float) -> dict[str, str]:
        """What a request says with so many seconds left: the server is told what is left, not what there was."""
        headers = {}
        if self.deadline_s is not None:
            headers[DEADLINE] = str(max(round(left_s * 1000), _SHORTEST_MS))
        if self.tier is not None:
            headers[TIER] = self.tier
        if self.sequence:
            headers[SEQUENCE] = self.sequence
        return headers
