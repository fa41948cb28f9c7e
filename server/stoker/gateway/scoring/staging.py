"""Requests that wait for a turn of the event loop, which decodes them together and the longest bodies last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.long_bodies import BodiesInDecoding
    from stoker.wire.script_requests import RequestHead

LONG_BODY_BYTES: Final = 1 << 15
"""A longer body may wait for a later turn; up to this size, decoding takes less than a millisecond."""

TURN_BYTES: Final = 1 << 18
"""How many bytes of long bodies are decoded per turn: some milliseconds of work."""

StagedCall = tuple["Call", bytes, "RequestHead | None"]
"""A request that waits for its turn: the call, its body, and its head if one is needed."""


class DecodeQueue:
    """The long bodies that wait, in order of arrival; a turn of the loop decodes `turn_bytes` of them."""

    def __init__(self, turn_bytes: int = TURN_BYTES, long_bytes: int = LONG_BODY_BYTES) -> None:
        self._turn_bytes = turn_bytes
        self._long_bytes = long_bytes
        self._waiting: deque[StagedCall] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[StagedCall]:
        return iter(self._waiting)

    def portion(self, arrived: Sequence[StagedCall]) -> list[StagedCall]:
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
            if call.is_awaited:
                taken_bytes += len(body)
                if taken_bytes > self._turn_bytes and taken_bytes > len(body):
                    break
                portion.append(waiting[0])
            waiting.popleft()
        return portion


class OrderedDecodeQueue(DecodeQueue):
    """Everything at once in order of arrival: requests of a sequence must not overtake each other."""

    def portion(self, arrived: Sequence[StagedCall]) -> list[StagedCall]:
        """Return everything that has arrived."""
        return list(arrived)


_LARGE_TURN: Final = 36
"""When this many requests arrive in one turn of the loop, they are sent to the device in two halves."""


class Staging:
    """The requests to one service that are decoded at the end of this turn of the event loop, or in a later one.

    All requests of one turn are decoded together, while the code and the tables of the decoder are in the
    processor's caches, and are sent to the device in one message.

    Attributes:
        arriving: How many bodies of requests are being received; they are staged once they are whole.
        decoding: The requests whose long bodies are decoded beside the event loop.
    """

    __slots__ = ("_long_bytes", "_queue", "_score_all", "_staged", "_turn_comes", "arriving", "decoding")

    def __init__(
        self,
        queue: DecodeQueue,
        score_all: Callable[[Sequence[StagedCall]], None],
        decoding: BodiesInDecoding,
    ) -> None:
        """Create it.

        Args:
            score_all: Decodes requests, and notifies the devices of all of them in one message.
        """
        self.arriving = 0
        self.decoding = decoding
        self._queue = queue
        self._score_all = score_all
        self._staged: list[StagedCall] = []
        self._long_bytes = 0
        self._turn_comes = False

    @property
    def idle(self) -> bool:
        """Whether no request waits, is decoded or is being received."""
        return not self.arriving and not self._staged and not self._queue and self.decoding.idle

    @property
    def late_calls(self) -> list[Call]:
        """The calls with long bodies that wait for a later turn, or are decoded beside the event loop."""
        return [*(call for call, *_ in self._queue), *self.decoding.calls]

    def add(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        """Stage a request."""
        if not self._staged:
            self._await_turn()
        self._staged.append((call, body, head))
        if len(body) > LONG_BODY_BYTES:
            self._long_bytes += len(body)

    def score_now(self) -> None:
        """Decode the staged requests now instead of at the end of this turn; those with long bodies wait."""
        if not self._long_bytes:
            staged, self._staged = self._staged, []
            self._score_all(staged)

    def _await_turn(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            asyncio.get_running_loop().call_soon(self._score_staged)

    def _score_staged(self) -> None:
        staged, self._staged = self._staged, []
        long_bytes, self._long_bytes, self._turn_comes = self._long_bytes, 0, False
        if long_bytes > TURN_BYTES or self._queue:
            staged = self._queue.portion(staged)
            if self._queue:
                self._await_turn()
        if len(staged) >= _LARGE_TURN:
            # An idle device should not wait until all of them are decoded: frontend and device then work in
            # parallel.
            half = len(staged) // 2
            self._score_all(staged[:half])
            staged = staged[half:]
        self._score_all(staged)
