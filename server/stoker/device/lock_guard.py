"""Ends a device process in which code never releases the interpreter lock.

No Python thread can notice that. Causes are regular expressions that backtrack without end, and native extensions
that loop or block without releasing the lock. The timer of `faulthandler` is a C thread that needs no lock: it logs
the stack of each thread and exits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

from stoker.system.processes import GRACE_MS
from stoker.system.vital_work import start_thread

# Hangs that a Python thread can notice are handled there, with a better message; this timeout is longer.
_LATER_MS: Final = 2000
_PAUSE_S: Final = 0.5
_STANDARD_ERROR: Final = 2


def _end_after(limit_s: float) -> None:
    faulthandler.dump_traceback_later(limit_s, exit=True, file=_STANDARD_ERROR)


class LockGuard:
    """Guards one process while its models serve: a process has one such timer, shared by its models.

    The lock may be held for as long as a run may take, with several models for as long as the longest of these.
    """

    def __init__(
        self,
        *,
        arm: Callable[[float], None] = _end_after,
        disarm: Callable[[], None] = faulthandler.cancel_dump_traceback_later,
    ) -> None:
        """Create it; nothing is guarded before `start`.

        Args:
            arm: Restarts the timer: the process ends after that many seconds.
            disarm: Stops the timer.
        """
        self._arm = arm
        self._disarm = disarm
        self._timeouts_ms: dict[int, int] = {}
        self._started = False
        self._suspended = 0
        self._lock = threading.Lock()

    def add(self, number: int, timeout_ms: int) -> None:
        """Add a model by its number, with the time after which its callers are answered."""
        with self._lock:
            self._timeouts_ms[number] = timeout_ms

    def remove(self, number: int) -> None:
        """Remove a model; without models nothing is guarded."""
        with self._lock:
            self._timeouts_ms.pop(number, None)
            self._set()

    def start(self) -> None:
        """Start guarding: a thread restarts the timer as long as it gets the lock.

        Not while a model is loading: reading a large file of objects may hold the lock for minutes.
        """
        self._started = True
        # A forked process would wait at its end for a thread that it does not have.
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

        start_thread(live, "guard of the interpreter lock")

    def stop(self) -> None:
        """Stop guarding."""
        with self._lock:
            self._started = False
            self._set()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Within the context the lock may be held for any time, for instance to free a model."""
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
        """Restart the timer."""
        with self._lock:
            self._set()

    def before_fork(self) -> None:
        """Stop the timer, and prevent restarts until the fork is done."""
        self._lock.acquire()
        self._disarm()

    def after_fork(self) -> None:
        """Continue in the parent."""
        self._set()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """The child does not serve, and is not guarded."""
        self._started = False
        self._lock.release()

    def _set(self) -> None:
        if self._started and self._timeouts_ms and not self._suspended:
            # Each time it starts a thread, for which there may be no memory now: the next renewal tries again.
            with contextlib.suppress(MemoryError, RuntimeError):
                self._arm((max(self._timeouts_ms.values()) + GRACE_MS + _LATER_MS) / 1000)
        else:
            self._disarm()
