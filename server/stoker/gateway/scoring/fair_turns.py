"""Which of the requests that have arrived are decoded in this turn of the event loop.

Decoding a long body takes as long as answering hundreds of short ones, and nothing is read from sockets meanwhile.
So short bodies are decoded first, and of long ones a limited number of bytes per turn: what arrives between two
turns is handled before the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call
    from stoker.wire.script_requests import RequestHead

__all__ = ["LONG_BODY_BYTES", "TURN_BYTES", "FairTurns", "OrderedTurns", "Staged"]

LONG_BODY_BYTES: Final = 1 << 15
"""A longer body may wait for a later turn; up to this size, decoding takes less than a millisecond."""

TURN_BYTES: Final = 1 << 18
"""How many bytes of long bodies are decoded per turn: some milliseconds of work."""

Staged = tuple["Call", bytes, "RequestHead | None"]
"""A request that waits for its turn: the call, its body, and its head if one is needed."""


class FairTurns:
    """The long bodies that wait for a turn of the loop, in order of arrival.

    Args:
        turn_bytes: How many of their bytes are decoded per turn.
        long_bytes: The size above which a body is a long one.
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
        """Add what has arrived since the last turn, and return what is decoded in this one.

        That is all short bodies, then the long ones that have waited longest, up to the bytes of a turn and at
        least one, so that each is decoded in the end. Calls that were given up are left out.
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
    """Everything at once in order of arrival: requests of a sequence must not overtake each other."""

    def portion(self, arrived: Sequence[Staged]) -> list[Staged]:
        """Return everything that has arrived."""
        return list(arrived)
