"""Every request is counted exactly once: right, refused, late, lost or wrong; what is not right needs an allowance.

An action that hurts the server says what it may cost before it strikes: which verdicts, whose, when, how many. What
no allowance covers is a broken promise. Nothing ever allows a wrong answer.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["GONE", "Allowance", "Ledger", "Outcome", "Verdict"]

GONE: Final = ("device_lost", "not_ready")
"""The codes of requests to a device process that has ended, or is not there yet."""


class Verdict(StrEnum):
    """How a request ended."""

    RIGHT = "right"
    """Answered, and exactly so as is known from the request alone."""
    REFUSED = "refused"
    """Told to come again: a code, and when."""
    LATE = "late"
    """Told that its deadline has passed."""
    LOST = "lost"
    """No answer: the connection ended or nothing came, and nobody said why."""
    WRONG = "wrong"
    """Any other answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request and its verdict.

    Attributes:
        verdict: How it ended.
        protocol: How it was asked.
        detail: The code of a refusal, or the fault of the answer.
        sent_s, ended_s: When it was sent, and when its end was known; monotonic clock.
        port: The caller's own port; 0 where it is not known.
        first: Whether it was the first of its connection.
    """

    verdict: Verdict
    protocol: str
    detail: str = ""
    sent_s: float = 0.0
    ended_s: float = 0.0
    port: int = 0
    first: bool = False


def _fits_any(_: Outcome) -> bool:
    return True


@dataclass
class Allowance:
    """The failures that an action may cause.

    Attributes:
        action: Which one.
        verdict: The verdict that it allows.
        fits: Whose.
        most: How many at most.
        from_s, until_s: When: requests that were under way in this time.
        used: How many there were.
    """

    action: str
    verdict: Verdict
    fits: Callable[[Outcome], bool] = _fits_any
    most: float = math.inf
    from_s: float = field(default_factory=time.monotonic)
    until_s: float = math.inf
    used: int = 0

    def covers(self, outcome: Outcome) -> bool:
        """Whether one more is allowed."""
        return (
            self.verdict == outcome.verdict
            and outcome.sent_s <= self.until_s
            and self.from_s <= outcome.ended_s
            and self.used < self.most
            and self.fits(outcome)
        )


class Ledger:
    """The record of each request and its outcome.

    Attributes:
        counts: How many of each protocol had which verdict.
        costs: How many that were not right each action has cost, by verdict.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Verdict]] = Counter()
        self.costs: Counter[tuple[str, Verdict]] = Counter()
        self._numbers = itertools.count(1)
        self._open: dict[int, str] = {}
        self._unjudged: list[Outcome] = []
        self._allowances: list[Allowance] = []

    def ask(self, protocol: str) -> int:
        """Open the account of a request; returns its number."""
        number = next(self._numbers)
        self._open[number] = protocol
        return number

    def settle(self, number: int, outcome: Outcome) -> None:
        """Close it, once."""
        assert self._open.pop(number) == outcome.protocol, f"request {number} was settled as another one"
        self.counts[outcome.protocol, outcome.verdict] += 1
        if outcome.verdict is not Verdict.RIGHT:
            self._unjudged.append(outcome)

    @property
    def open(self) -> int:
        """How many requests are under way."""
        return len(self._open)

    def count(self, verdict: Verdict) -> int:
        """How many had this verdict."""
        return sum(count for (_, one), count in list(self.counts.items()) if one is verdict)

    def allow(self, allowance: Allowance) -> Allowance:
        """Allow something from now on."""
        self._allowances.append(allowance)
        return allowance

    def end_allowances(self, at_s: float) -> None:
        """Let all open allowances end then."""
        for allowance in self._allowances:
            allowance.until_s = min(allowance.until_s, at_s)

    def broken(self) -> list[Outcome]:
        """Judge the outcomes since the last call that were not right; returns those that no allowance covers."""
        unjudged, self._unjudged = self._unjudged, []
        return [outcome for outcome in unjudged if not self._allowed(outcome)]

    def _allowed(self, outcome: Outcome) -> bool:
        # Those without a bound first, so that none of a bounded one is used up in vain.
        for allowance in sorted(self._allowances, key=lambda one: one.most, reverse=True):
            if allowance.covers(outcome):
                allowance.used += 1
                self.costs[allowance.action, outcome.verdict] += 1
                return True
        return False

    def add(self, others: Iterable[Ledger]) -> Ledger:
        """Add the counts of others to this one; returns it."""
        for other in others:
            self.counts.update(other.counts)
            self.costs.update(other.costs)
        return self
