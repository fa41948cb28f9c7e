"""Ends calls of `run` that last too long: by an exception in its thread, or, if that does not help, with the process.

The Azure inference server does the first by a signal in its main thread; here `run` may be on any thread.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from stoker.errors import ScoringTimeout
from stoker.system.forks import call_in_this_process
from stoker.system.processes import GRACE_MS, ExitCode, end_process

__all__ = ["Watchdog"]

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

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
        """Watch from now on; `start` makes the thread that looks.

        Args:
            timeout_ms: How long a call may last.
            clock_ns: The time.
            end_process: Ends this process, which the supervisor then starts anew.
        """
        self.timeout_ms = timeout_ms
        self._clock_ns = clock_ns
        self._end_process = end_process
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Look for late calls, on a thread of its own, as long as the process lives."""
        pause_s = min(_LONGEST_PAUSE_S, self.timeout_ms / 1000 / 20)

        def live() -> None:
            while True:
                time.sleep(pause_s)
                self.look()

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

    def look(self) -> None:
        """Interrupt the calls that are late; end the process if one of them does not heed that."""
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
