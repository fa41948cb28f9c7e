"""`async def init` and `async def run`: coroutines of scripts are finished where they were made, or on one loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from concurrent.futures import Future, wait
from typing import Any, Final

from stoker.system.forks import CHILDREN, call_in_this_process

__all__ = ["SharedLoop", "finish", "share_loop"]

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
"""An exception that is raised in a thread from outside arrives when the thread looks around."""

_thread: Final = threading.local()
_shared: Final[list[SharedLoop]] = []


class SharedLoop:
    """An event loop with a thread of its own, on which the coroutines of several threads go on at the same time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._turning = threading.Thread(target=self._live, name="coroutines", daemon=True)
        self._turning.start()
        CHILDREN.tell(self)

    def _live(self) -> None:
        while not self._closing:
            try:
                call_in_this_process(self._loop.run_forever)
            except (SystemExit, KeyboardInterrupt) as error:
                # Whoever waits for the coroutine gets it too; those of others go on.
                logger.warning("a coroutine raised %r", error)

    def after_fork(self) -> None:
        """In a child that a coroutine has forked, end when that gives way: the other coroutines are the parent's."""
        if threading.get_ident() == self._turning.ident:
            self._closing = True
            self._loop.stop()

    def finish(self, awaitable: Any) -> Any:
        """Return what something awaitable comes to; it sees the context of this thread."""
        coming: Future[Any] = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)
        try:
            while not wait((coming,), _LOOK_S).done:
                pass
            return coming.result()
        except BaseException:
            if not coming.done():
                coming.cancel()
                # While code of the script holds the loop, this thread is what the watchdog sees.
                self._turn()
            raise

    def close(self) -> None:
        """End; nothing is to be finished on it any more."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._turning.join()
        self._loop.close()

    def _turn(self) -> None:
        """Wait until the loop has turned once."""
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        while not turned.wait(_LOOK_S):
            pass


def share_loop() -> None:
    """Finish coroutines of all threads on one loop from now on; call it before the first."""
    _shared.append(SharedLoop())


def finish(result: Any) -> Any:
    """Return `result`, or, if it is awaitable, what it comes to.

    Each thread has one event loop for all its coroutines, or all threads share one: so what `init` has set up on it
    serves every `run`.
    """
    if not inspect.isawaitable(result):
        return result
    if _shared:
        return _shared[-1].finish(result)
    loop = getattr(_thread, "loop", None)
    if loop is None:
        loop = _thread.loop = asyncio.new_event_loop()
    task = asyncio.ensure_future(result, loop=loop)
    try:
        return loop.run_until_complete(task)
    finally:
        # One that was interrupted must not go on in the next request's time.
        task.cancel()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
