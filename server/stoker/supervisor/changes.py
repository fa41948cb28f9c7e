"""Waiting in a coroutine until what others change is as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Changes"]


class Changes:
    """A condition variable of the supervisor: changes are told, and whoever waits checks again."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Wake all that wait, to check again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, look: Callable[[], object]) -> None:
        """Wait until `look` returns something true; it is called again after each change."""
        while not look():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
