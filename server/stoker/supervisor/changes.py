"""Waiting in a coroutine until what others change is as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Changes"]


class Changes:
    """Whoever changes something tells; whoever waits looks again then."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Let all that wait look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, look: Callable[[], object]) -> None:
        """Wait until there is something true to see."""
        while not look():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
