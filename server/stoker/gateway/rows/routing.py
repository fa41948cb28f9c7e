"""To which of several servers, or replicas, a request goes: the best of a few, by when each would be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

__all__ = ["CHOICES", "Crowded", "Routing", "State", "Timed", "earliest_end", "fewest_rows", "route"]

CHOICES: Final = 3
"""Among so many, drawn by chance, requests are routed by the expected end: if all who route took the best of all, by
what they knew some milliseconds ago, all would take the same."""

Routing = Literal["random", "rows", "end"]
"""By chance; to the fewest rows that wait; to the earliest expected end."""


class Crowded(Protocol):
    """Who has rows."""

    @property
    def leased_rows(self) -> int:
        """How many rows it has, as far as is known."""


class Timed(Protocol):
    """Who takes time."""

    def end_ns(self, now_ns: int, rows: int) -> int:
        """When it would be done with so many more rows, as far as is known."""


class State(Crowded, Timed, Protocol):
    """What is known of a server, with what was sent to it since."""


def route(by: Routing, drawn: Sequence[State], now_ns: int, rows: int) -> int:
    """Choose among those that were drawn; returns the place of one.

    Args:
        by: What is compared.
        drawn: What is known of each.
        now_ns: The time.
        rows: Rows of the request.
    """
    if by == "random" or len(drawn) == 1:
        return 0
    return fewest_rows(drawn) if by == "rows" else earliest_end(drawn, now_ns, rows)


def fewest_rows(drawn: Sequence[Crowded]) -> int:
    """The place of the one with the fewest rows; of equals, of the first."""
    rows = [one.leased_rows for one in drawn]
    return rows.index(min(rows))


def earliest_end(drawn: Sequence[Timed], now_ns: int, rows: int) -> int:
    """The place of the one that would be done first with so many more rows; of equals, of the first."""
    ends_ns = [one.end_ns(now_ns, rows) for one in drawn]
    return ends_ns.index(min(ends_ns))
