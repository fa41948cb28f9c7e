"""Work that owners share the places for: they take turns, and no owner can have all places."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from stoker.gateway.later.spool import OWNER_CHARS
from stoker.residency.taking_turns import RecentTurns

_OF_THE_FREE: Final = 2
"""How many times the free places an owner may have: of the memory of large bodies it is the same."""


class Turns:
    """Does work for ids of the spool, each owner's in order.

    An owner whose work takes long, or hangs, has at most twice as many places as stay free: alone two thirds of
    them, so that the next owner's work begins at once.
    """

    def __init__(self, places: int, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Prepare it; `work` catches its exceptions."""
        self._free = places
        self._work = work
        self._begins = False
        self._queues: dict[str, deque[str]] = {}
        self._taken: Counter[str] = Counter()
        self._turns = RecentTurns()
        self.running: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to work."""
        self._begins = True
        self._fill()

    def pause(self) -> None:
        """Begin nothing further."""
        self._begins = False

    def waiting(self, owner: str) -> int:
        """Return how many ids of an owner wait."""
        return len(self._queues.get(owner, ()))

    def put(self, name: str) -> None:
        """Queue an id."""
        self._queues.setdefault(name[:OWNER_CHARS], deque()).append(name)
        self._fill()

    def _fill(self) -> None:
        while self._begins and (owner := self._next_owner()) is not None:
            queue = self._queues[owner]
            task = asyncio.ensure_future(self._work(queue.popleft()))
            if not queue:
                del self._queues[owner]
            self._free -= 1
            self._taken[owner] += 1
            self._turns.record(owner)
            self.running.add(task)
            task.add_done_callback(lambda task, owner=owner: self._end(task, owner))  # type: ignore[misc]

    def _next_owner(self) -> str | None:
        if not self._free:
            return None
        most = _OF_THE_FREE * self._free
        return self._turns.next_of(owner for owner in self._queues if self._taken[owner] < most)

    def _end(self, task: asyncio.Task[None], owner: str) -> None:
        self.running.discard(task)
        self._free += 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        self._fill()
