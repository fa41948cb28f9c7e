"""Ends a device process when a run does not return: a hanging driver cannot be interrupted.

Entry scripts have a watchdog of their own, which interrupts them earlier: `stoker.scripts.call_watchdog`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from stoker.system.processes import GRACE_MS, ExitCode, end_process
from stoker.system.vital_work import start_thread

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5


class HangWatch:
    """Watches for runs of one model that hang."""

    def __init__(
        self,
        name: str,
        timeout_ms: int,
        runs_began_ns: Callable[[], Iterable[int]],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        end_process: Callable[[ExitCode], None] = end_process,
    ) -> None:
        """Create it; nothing is watched before `start`.

        Args:
            name: The model's name, for the log.
            timeout_ms: After this time callers have been told that they get no answer.
            runs_began_ns: Returns when the present runs started; 0 for an instance that is not running.
            end_process: Ends this process, which the supervisor then restarts.
        """
        self._name = name
        self._limit_ms = timeout_ms + GRACE_MS
        self._runs_began_ns = runs_began_ns
        self._clock_ns = clock_ns
        self._end_process = end_process
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch on a thread of its own, until `stop`."""

        def live() -> None:
            while not self._stopped.wait(_PAUSE_S):
                self.check()

        self._thread = start_thread(live, f"hang watch of {self._name}", end_process=self._end_process)

    def stop(self) -> None:
        """Stop watching; its thread, which knows the model, has ended when this returns."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """End the process if a run has lasted too long."""
        now_ns = self._clock_ns()
        for began_ns in self._runs_began_ns():
            if began_ns and now_ns - began_ns > self._limit_ms * 1_000_000:
                logger.critical(
                    "%s: a run has not returned within %d ms: the device process exits",
                    self._name,
                    self._limit_ms,
                )
                self._end_process(ExitCode.STUCK)
                return
