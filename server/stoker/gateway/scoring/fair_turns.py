"""Fair turns: which of the requests that have arrived are decoded in this turn of the event loop.

Decoding a long body takes as long as answering hundreds of short ones, and nothing is read meanwhile. So short ones
go first, and of long ones only so many bytes a turn: what arrives between two turns is heard before the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call
    from stoker.wire.envelope import RequestHead

__all__ = ["LONG_BODY_BYTES", "TURN_BYTES", "FairTurns", "OrderedTurns", "Staged"]

LONG_BODY_BYTES: Final = 1 << 15
"""A longer body may wait for a later turn; up to this size, decoding takes less than a millisecond."""

TURN_BYTES: Final = 1 << 18
"""So many bytes of long bodies are decoded in one turn: some milliseconds."""

Staged = tuple["Call", bytes, "RequestHead | None"]
"""A request that waits for a turn: its body, and its head if somebody wants to see that."""


class FairTurns:
    """The long bodies that wait for a turn of the loop, in the order in which they came.

    Args:
        turn_bytes: How many bytes of them go in one turn.
        long_bytes: A body of more is a long one.
    """

    def __init__(self, turn_bytes: int = TURN_BYTES, long_bytes: int = LONG_BODY_BYTES) -> None:
        self._turn_bytes = turn_bytes
        self._long_bytes = long_bytes
        self._waiting: deque[Staged] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Staged]:
        return iter(self._waiting)

    def portion(self, arrived: Sequence[Staged]) -> list[Staged]:
        """Take in what has arrived since the last turn, and return what is decoded in this one.

        That is all that is short, then the long ones that have waited longest: at least one, so that each has its
        turn, and no more than what a turn takes. What its caller has given up costs nobody a turn.
        """
        portion = []
        for staged in arrived:
            if len(staged[1]) > self._long_bytes:
                self._waiting.append(staged)
            else:
                portion.append(staged)
        waiting, taken_bytes = self._waiting, 0
        while waiting:
            call, body, _ = waiting[0]
            if call.wanted:
                taken_bytes += len(body)
                if taken_bytes > self._turn_bytes and taken_bytes > len(body):
                    break
                portion.append(waiting[0])
            waiting.popleft()
        return portion


class OrderedTurns(FairTurns):
    """All at once, in the order in which they came: requests of a sequence may not overtake each other."""

    def portion(self, arrived: Sequence[Staged]) -> list[Staged]:
        """Return all that have arrived."""
        return list(arrived)
