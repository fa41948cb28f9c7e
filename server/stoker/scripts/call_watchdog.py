"""Ends calls of `run` that last too long: by an exception in their thread or, if that fails, with the process.

The Azure inference server raises the exception by a signal in its main thread; here `run` may be on any thread.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from stoker.errors import ScoringTimeout
from stoker.scripts.exits import contain
from stoker.system.forks import call_in_this_process
from stoker.system.processes import GRACE_MS, ExitCode, end_process
from stoker.system.vital_work import start_thread

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 0.5

_Result = TypeVar("_Result")


class _Interrupt(BaseException):
    """Raised in the thread of a late call. No Exception: `except Exception` in a script must not catch it."""


class _Call:
    __slots__ = ("begun_ns", "interrupted", "thread_id")

    def __init__(self, thread_id: int, begun_ns: int) -> None:
        self.thread_id = thread_id
        self.begun_ns = begun_ns
        self.interrupted = False


class Watchdog:
    """Watches the calls of one script's `run`, on all threads."""

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

        start_thread(live, "watchdog", end_process=self._end_process)

    def guard(self, function: Callable[[], _Result]) -> _Result:
        """Call `function` on this thread, and watch it.

        Raises:
            ScoringTimeout: The call was interrupted.
        """
        call = _Call(threading.get_ident(), self._clock_ns())
        with self._lock:
            self._calls.add(call)
        try:
            try:
                # Inside of `_leave`: in a process that the function forks, another thread's lock is never released.
                return call_in_this_process(function)
            finally:
                self._leave(call)
        except _Interrupt as interrupt:
            # The interruption can arrive while `_leave` runs.
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
                        "run() has ignored the interruption for %d ms: the device process exits", late_ms
                    )
                    self._end_process(ExitCode.STUCK)

    def _leave(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)
            if call.interrupted:
                # An interruption that has not arrived yet must not hit the next work of this thread.
                _raise_in(call.thread_id, None)


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread; None takes back one that has not been raised yet."""
    raised = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)


def call_contained(function: Callable[[], _Result], watchdog: Watchdog | None) -> _Result:
    """Call code of a script: its exits are errors, and a watchdog, if there is one, ends a late call."""
    return contain(function if watchdog is None else lambda: watchdog.guard(function))
