"""The urgency of requests: deadline, tier, and sequence."""

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
    """The deadline and tier of requests, and the sequence of one.

    Attributes:
        deadline_s: Seconds from the call after which an answer is useless; None without a deadline.
        tier: The requested tier; None for the model's `default_tier`.
        sequence: The value of the sequence header; empty for none.
    """

    deadline_s: float | None = None
    tier: Tier | None = None
    sequence: str = ""

    def changed(self, deadline_ms: float | None, tier: Tier | None) -> Self:
        """Return the urgency with these changes."""
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
        """Return the headers of a request with `left_s` seconds left, which is the deadline sent to the server."""
        headers = {}
        if self.deadline_s is not None:
            headers[DEADLINE] = str(max(round(left_s * 1000), _SHORTEST_MS))
        if self.tier is not None:
            headers[TIER] = self.tier
        if self.sequence:
            headers[SEQUENCE] = self.sequence
        return headers
