"""Lets coroutines wait for a condition on shared state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Changes"]


class Changes:
    """A condition variable of the supervisor: whoever changes state calls `tell`, and waiters check again."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Wake all waiters, to check again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, look: Callable[[], object]) -> None:
        """Wait until `look` returns a true value; it is called again after each change."""
        while not look():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
