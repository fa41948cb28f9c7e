"""Finishes coroutines of scripts (`async def run`) on the thread that made them, or on a shared loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from concurrent.futures import Future, wait
from typing import Any, Final

from stoker.system.forks import CHILDREN, call_in_this_process

logger = logging.getLogger(__name__)

_CHECK_S: Final = 0.25
"""How often a waiting thread wakes up: only then it raises an exception that another thread has set for it."""
OF_THREAD: Final = threading.local()
"""Holds the `loop` of each thread that has finished a coroutine of its own."""
SHARED_LOOPS: Final[list[SharedLoop]] = []
"""If there are any, the last one finishes the coroutines of all threads."""


class SharedLoop:
    """An event loop with a thread of its own that runs the coroutines of several threads at the same time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._turning = threading.Thread(target=self._live, name="coroutines", daemon=True)
        self._turning.start()
        CHILDREN.notify(self)

    def _live(self) -> None:
        while not self._closing:
            try:
                call_in_this_process(self._loop.run_forever)
            except (SystemExit, KeyboardInterrupt) as error:
                # The caller of the coroutine gets it too; other coroutines go on.
                logger.warning("a coroutine raised %r", error)

    def after_fork(self) -> None:
        """In a child that a coroutine has forked, stop the loop: the other coroutines belong to the parent."""
        if threading.get_ident() == self._turning.ident:
            self._closing = True
            self._loop.stop()

    def finish(self, awaitable: Any) -> Any:
        """Wait for an awaitable on the loop, in the context of this thread, and return its result."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)
        try:
            while not wait((future,), _CHECK_S).done:
                pass
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                # The watchdog sees only this thread, so stay until the coroutine gives the loop back.
                self._turn()
            raise

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._turning.join()
        self._loop.close()

    def _turn(self) -> None:
        """Wait until the loop has turned once."""
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        while not turned.wait(_CHECK_S):
            pass


def share_loop() -> None:
    """Finish the coroutines of all threads on one loop from now on; call it before the first coroutine."""
    SHARED_LOOPS.append(SharedLoop())


def finish(result: Any) -> Any:
    """Return `result`, or the result of awaiting it if it is awaitable.

    Each thread has one event loop for all its coroutines, or all threads share one. So objects that `init` has bound
    to the loop work in every `run`.
    """
    if not inspect.isawaitable(result):
        return result
    if SHARED_LOOPS:
        return SHARED_LOOPS[-1].finish(result)
    loop = getattr(OF_THREAD, "loop", None)
    if loop is None:
        loop = OF_THREAD.loop = asyncio.new_event_loop()
    task = asyncio.ensure_future(result, loop=loop)
    try:
        return loop.run_until_complete(task)
    finally:
        # An interrupted coroutine must not go on during the next request.
        task.cancel()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
