"""Ends a device process in which code holds Python's interpreter lock for ever: no thread of Python can see that.

A regular expression that backtracks without end does so, and a native extension that loops or waits and keeps the
lock. The timer of `faulthandler` is a thread of C that needs no lock: it writes where each thread is, and exits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

from stoker.system.process_end import GRACE_MS

__all__ = ["LockGuard"]

# Whoever can be seen by a thread of Python is ended by that, which says more.
_LATER_MS: Final = 2000
_PAUSE_S: Final = 0.5
_STANDARD_ERROR: Final = 2


def _end_after(limit_s: float) -> None:
    faulthandler.dump_traceback_later(limit_s, exit=True, file=_STANDARD_ERROR)


class LockGuard:
    """Guards one process while its models serve: there is one timer in a process, for all of them.

    A run may hold the lock for as long as a run may last at all, and of several models for as long as that of the
    most patient one.
    """

    def __init__(
        self,
        *,
        arm: Callable[[float], None] = _end_after,
        disarm: Callable[[], None] = faulthandler.cancel_dump_traceback_later,
    ) -> None:
        """Guard nothing until `start`.

        Args:
            arm: Sets the timer anew: the process ends after so many seconds.
            disarm: Stops the timer.
        """
        self._arm = arm
        self._disarm = disarm
        self._timeouts_ms: dict[int, int] = {}
        self._started = False
        self._suspended = 0
        self._lock = threading.Lock()

    def add(self, number: int, timeout_ms: int) -> None:
        """Count a model, by its number, whose callers are answered after so long."""
        with self._lock:
            self._timeouts_ms[number] = timeout_ms

    def remove(self, number: int) -> None:
        """Count a model no more; without any nothing is guarded."""
        with self._lock:
            self._timeouts_ms.pop(number, None)
            self._set()

    def start(self) -> None:
        """Guard from now on, by a thread that sets the timer anew as long as it gets the lock.

        Not while a model is loaded: reading a large file of objects may keep the lock for minutes.
        """
        self._started = True
        # A forked process would wait for a thread that it does not have, when it ends.
        os.register_at_fork(
            before=self.before_fork,
            after_in_parent=self.after_fork,
            after_in_child=self.after_fork_in_child,
        )
        self.renew()

        def live() -> None:
            pause = threading.Event()
            while self._started:
                pause.wait(_PAUSE_S)
                self.renew()

        threading.Thread(target=live, name="guard of the interpreter lock", daemon=True).start()

    def stop(self) -> None:
        """Guard no more."""
        with self._lock:
            self._started = False
            self._set()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """In the body the lock may be held for as long as it takes, for instance to free a model."""
        with self._lock:
            self._suspended += 1
            self._set()
        try:
            yield
        finally:
            with self._lock:
                self._suspended -= 1
                self._set()

    def renew(self) -> None:
        """Set the timer anew."""
        with self._lock:
            self._set()

    def before_fork(self) -> None:
        """Stop the timer, and let nobody set it before the fork."""
        self._lock.acquire()
        self._disarm()

    def after_fork(self) -> None:
        """Go on in the parent."""
        self._set()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """What is forked does not serve."""
        self._started = False
        self._lock.release()

    def _set(self) -> None:
        if self._started and self._timeouts_ms and not self._suspended:
            self._arm((max(self._timeouts_ms.values()) + GRACE_MS + _LATER_MS) / 1000)
        else:
            self._disarm()
