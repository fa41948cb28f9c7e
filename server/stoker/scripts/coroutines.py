"""`async def init` and `async def run`: coroutines of scripts are finished where they were made."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any, Final

__all__ = ["finish"]

_thread: Final = threading.local()


def finish(result: Any) -> Any:
    """Return `result`, or, if it is awaitable, what it comes to.

    Each thread has one event loop for all its coroutines, so what `init` has set up on it serves every `run`.
    """
    if not inspect.isawaitable(result):
        return result
    loop = getattr(_thread, "loop", None)
    if loop is None:
        loop = _thread.loop = asyncio.new_event_loop()
    task = asyncio.ensure_future(result, loop=loop)
    try:
        return loop.run_until_complete(task)
    finally:
        # One that was interrupted must not go on in the next request's time.
        task.cancel()
