"""To which of many servers a request goes: the best of a few that are drawn, by when each would be done with it."""

from __future__ import annotations

from typing import Final, Literal, Protocol

__all__ = ["ROUTINGS", "Routing", "State", "route"]

Routing = Literal["random", "rows", "end"]
ROUTINGS: Final = ("random", "rows", "end")
"""By chance; to the fewest waiting rows; to the earliest expected end."""


class State(Protocol):
    """What is known of a server, with what was sent to it since."""

    @property
    def rows(self) -> int:
        """How many rows wait there."""

    def end_ns(self, now_ns: int, rows: int) -> int:
        """When it would be done with as many more."""


def route(by: Routing, drawn: list[State], now_ns: int, rows: int) -> int:
    """Choose among servers; returns its place among those that were drawn.

    Args:
        by: What is compared.
        drawn: What is known of each.
        now_ns: The time.
        rows: Rows of the request.
    """
    if by == "random" or len(drawn) == 1:
        return 0
    ends = [state.rows if by == "rows" else state.end_ns(now_ns, rows) for state in drawn]
    return min(range(len(drawn)), key=ends.__getitem__)
