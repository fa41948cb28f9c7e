"""Memory for messages that arrive on one connection, on the budget that the bodies of HTTP are received on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stoker.errors import Overloaded
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, BodyBudget, Caller

__all__ = ["Hold", "Room"]

_SMALL_BYTES: Final = 1 << 16
"""Messages up to this size are not counted at all: there are no more of them than streams."""


class Hold:
    """What one message has taken, until it is released."""

    __slots__ = ("_room", "_size_bytes")

    def __init__(self, room: Room, size_bytes: int) -> None:
        self._room = room
        self._size_bytes = size_bytes

    def release(self) -> None:
        """Give it back; again is no fault."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._room.give_back(size_bytes)


class Room:
    """What the messages of one connection take.

    Together they take nothing of the budget up to 1 MiB, as much as one body of HTTP may have uncounted. Whose they
    are is not known while they arrive, as the model is named in the message: so the address stands for the caller.

    Args:
        budget: The frontend's budget.
        address: Where the connection comes from.
    """

    def __init__(self, budget: Callable[[], BodyBudget], address: str) -> None:
        self._find_budget = budget
        self._caller = Caller.at(address)
        self._held_bytes = 0
        self._budget: BodyBudget | None = None
        self._covered_bytes = 0

    def take(self, size_bytes: int) -> Hold | None:
        """Take room for a message of this size; None if it is so small that it is not counted.

        Raises:
            Overloaded: There is none.
        """
        if size_bytes <= _SMALL_BYTES:
            return None
        if not self._cover(self._held_bytes + size_bytes):
            raise Overloaded("Too many large request bodies are being received.", retry_after_s=1)
        return Hold(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Take back what a message has taken."""
        self._cover(self._held_bytes - size_bytes)

    def _cover(self, held_bytes: int) -> bool:
        steps = -(-held_bytes // LARGE_BODY_BYTES)
        wanted = steps * LARGE_BODY_BYTES if steps > 1 else 0
        more = wanted - self._covered_bytes
        if more:
            if self._budget is None or not self._covered_bytes:
                self._budget = self._find_budget()
            if more < 0:
                self._budget.release(self._caller, -more, -more)
            elif not self._budget.take(self._caller, more, more):
                return False
            self._covered_bytes = wanted
        self._held_bytes = held_bytes
        return True
