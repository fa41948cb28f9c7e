"""The order in which models are loaded in a place: callers take turns, and a slow load lets others begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from stoker.residency.taking_turns import RecentTurns

_PLACES: Final = 6
"""So many loads go on at once: one of them is in its turn, the others are slow."""
_PLACES_OF_CALLER: Final = 3


class Load(Struct, eq=False):
    """A load that waits for its turn, or goes on.

    Attributes:
        model: Its model; loads of one model do not go on beside each other.
        callers: Names of those who wait for it; others may join them.
        begin: Called when its turn comes.
        caller: The caller whose turn it has.
        is_alone: Whether no other load has gone on beside it.
    """

    model: str
    callers: set[str]
    begin: Callable[[], object] = lambda: None
    caller: str = ""
    is_alone: bool = True


class LoadTurns:
    """The loads of a place. One at a time has the turn; it ends with the load, or when the load steps aside.

    Callers take turns, so that one who asks for many models does not delay those of others. One caller's loads
    take only some of the places, because each of them may hang.
    """

    def __init__(self) -> None:
        self._waiting: list[Load] = []
        self._beside: list[Load] = []
        self._current: Load | None = None
        self._turns = RecentTurns()

    @property
    def is_taken(self) -> bool:
        """Whether a load has the turn."""
        return self._current is not None

    def request(self, load: Load) -> None:
        """Let a load begin when its turn comes, which may be now."""
        self._waiting.append(load)
        self._begin_next()

    def step_aside(self, load: Load) -> None:
        """Let the next load begin beside one that is slow."""
        if self._current is load:
            self._current = None
            self._beside.append(load)
            self._begin_next()

    def end(self, load: Load) -> None:
        """Record that a load has ended, or is not wanted any more."""
        for loads in (self._waiting, self._beside):
            if load in loads:
                loads.remove(load)
        if self._current is load:
            self._current = None
        self._begin_next()

    def _begin_next(self) -> None:
        if self._current is not None or len(self._beside) >= _PLACES:
            return
        models = {load.model for load in self._beside}
        slow = Counter(load.caller for load in self._beside)
        # Of equal callers, the load that was requested first.
        turns = [
            (self._turns.last_turn(caller), order, caller)
            for order, load in enumerate(self._waiting)
            if load.model not in models
            for caller in load.callers
            if slow[caller] < _PLACES_OF_CALLER
        ]
        if not turns:
            return
        _, order, caller = min(turns)
        self._current = load = self._waiting.pop(order)
        load.caller, load.is_alone = caller, not self._beside
        for other in self._beside:
            other.is_alone = False
        self._turns.record(caller)
        load.begin()


def choose_before(pending: Iterable[tuple[str, float]], caller: str) -> list[float]:
    """Return those of the loads that come before a new one of a caller: of others at most one more than of its own.

    Args:
        pending: Caller and expected seconds of each, in the order in which they were requested.
    """
    by_caller: dict[str, list[float]] = {}
    for other, load_s in pending:
        by_caller.setdefault(other, []).append(load_s)
    own = len(by_caller.get(caller, ()))
    return [load_s for loads_s in by_caller.values() for load_s in loads_s[: own + 1]]
