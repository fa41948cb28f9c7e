"""Guards around the code of scripts: its exits are errors, its late calls end, its coroutines are finished.

A call that lasts too long is ended by an exception in its thread, or, if that does not help, with the process. The
Azure inference server does the first by a signal in its main thread; here `run` may be on any thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from stoker.errors import ScoringTimeout
from stoker.system.forks import CHILDREN, call_in_this_process
from stoker.system.processes import GRACE_MS, ExitCode, end_process

logger = logging.getLogger(__name__)


_Result = TypeVar("_Result")


def contain(function: Callable[[], _Result], what: str = "run()") -> _Result:
    """Call code of a script; of processes that it forks this one alone comes back.

    Raises:
        Exception: Whatever it raised.
        RuntimeError: It raised what is no Exception, and passes the handlers that are made for those: `sys.exit()`,
            KeyboardInterrupt, asyncio's CancelledError.
    """
    try:
        return call_in_this_process(function)
    except Exception:
        raise
    except SystemExit as error:
        raise RuntimeError(f"{what} called sys.exit({error.code!r})") from error
    except BaseException as error:
        raise RuntimeError(f"{what} raised {type(error).__name__}") from error


# Ends calls of `run` that last too long: by an exception in its thread, or, if that does not help, with the process.


_LONGEST_PAUSE_S: Final = 0.5


class _Interrupt(BaseException):
    """Raised in the thread of a call. No Exception: a script's `except Exception` is not to swallow it."""


class _Call:
    __slots__ = ("begun_ns", "interrupted", "thread_id")

    def __init__(self, thread_id: int, begun_ns: int) -> None:
        self.thread_id = thread_id
        self.begun_ns = begun_ns
        self.interrupted = False


class Watchdog:
    """Watches the calls of one script's `run`, on whatever threads they are."""

    def __init__(
        self,
        timeout_ms: int,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        end_process: Callable[[ExitCode], None] = end_process,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._clock_ns = clock_ns
        self._end_process = end_process
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Check the calls on a thread of its own until the process ends."""
        pause_s = min(_LONGEST_PAUSE_S, self.timeout_ms / 1000 / 20)

        def live() -> None:
            while True:
                time.sleep(pause_s)
                self.check_calls()

        threading.Thread(target=live, name="watchdog", daemon=True).start()

    def guard(self, function: Callable[[], _Result]) -> _Result:
        """Call `function` on this thread, and watch it.

        Raises:
            ScoringTimeout: It was interrupted.
        """
        call = _Call(threading.get_ident(), self._clock_ns())
        with self._lock:
            self._calls.add(call)
        try:
            try:
                # Within: a lock may be held for ever in a process that the function has forked.
                return call_in_this_process(function)
            finally:
                self._leave(call)
        except _Interrupt as interrupt:
            # It can arrive while the call leaves already.
            self._leave(call)
            raise ScoringTimeout(self.timeout_ms) from interrupt

    def check_calls(self) -> None:
        """Interrupt late calls; end the process if a call ignores the interruption."""
        now_ns = self._clock_ns()
        with self._lock:
            for call in self._calls:
                late_ms = (now_ns - call.begun_ns) / 1e6 - self.timeout_ms
                if late_ms >= 0 and not call.interrupted:
                    logger.error("run() has not returned within %d ms: it is interrupted", self.timeout_ms)
                    call.interrupted = True
                    _raise_in(call.thread_id, _Interrupt)
                elif late_ms >= GRACE_MS:
                    logger.critical(
                        "run() does not heed the interruption since %d ms: the device process exits", late_ms
                    )
                    self._end_process(ExitCode.STUCK)

    def _leave(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)
            if call.interrupted:
                # One that is still on its way must not hit what this thread does next.
                _raise_in(call.thread_id, None)


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    wanted = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), wanted)


# `async def init` and `async def run`: coroutines of scripts are finished where they were made, or on one loop.


_CHECK_S: Final = 0.25
"""An exception that is raised in a thread from outside arrives when the thread looks around."""

OF_THREAD: Final = threading.local()
"""Holds the `loop` of each thread that has finished a coroutine of its own."""
SHARED_LOOPS: Final[list[SharedLoop]] = []
"""The last one finishes the coroutines of all threads."""


class SharedLoop:
    """An event loop with a thread of its own, on which the coroutines of several threads go on at the same time."""

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
                # Whoever waits for the coroutine gets it too; those of others go on.
                logger.warning("a coroutine raised %r", error)

    def after_fork(self) -> None:
        """In a child that a coroutine has forked, end when that gives way: the other coroutines are the parent's."""
        if threading.get_ident() == self._turning.ident:
            self._closing = True
            self._loop.stop()

    def finish(self, awaitable: Any) -> Any:
        """Return the result of an awaitable, which sees the context of this thread."""
        coming: Future[Any] = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)
        try:
            while not wait((coming,), _CHECK_S).done:
                pass
            return coming.result()
        except BaseException:
            if not coming.done():
                coming.cancel()
                # While code of the script holds the loop, this thread is what the watchdog sees.
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
    """Finish coroutines of all threads on one loop from now on; call it before the first."""
    SHARED_LOOPS.append(SharedLoop())


def finish(result: Any) -> Any:
    """Return `result`, or the result of awaiting it if it is awaitable.

    Each thread has one event loop for all its coroutines, or all threads share one: so what `init` has set up on it
    serves every `run`.
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
        # One that was interrupted must not go on in the next request's time.
        task.cancel()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
