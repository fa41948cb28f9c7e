"""The warden: a process that outlives the agent by as long as it takes to kill what the agent has left."""

import contextlib
import os
import signal

from stoker_run.processes import sweep

__all__ = ["Warden"]

_DISMISSED = b"."


class Warden:
    """Waits for the agent's end; when that was not orderly, kills the processes of the attempt.

    It is forked before anything is started, and inherits the agent's lock, which is free when both are gone.

    Args:
        key: Of the attempt.
        lock: File descriptor of the lock.
    """

    def __init__(self, key: str, lock: int) -> None:
        listening, self._pipe = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Nothing of the agent runs on in here, whatever happens.
            try:
                _watch(key, listening, lock)
            finally:
                os._exit(0)
        os.close(listening)

    def dismiss(self) -> None:
        """Let it go, and wait until it has gone."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, _DISMISSED)
        os.close(self._pipe)
        with contextlib.suppress(OSError):
            os.waitpid(self.pid, 0)


def _watch(key: str, listening: int, lock: int) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    low, high = sorted((listening, lock))
    os.closerange(0, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, 4096)
    if os.read(listening, 1) != _DISMISSED:
        sweep(key)
