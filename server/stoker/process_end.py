"""How a device process ends where only a new one helps: by itself, or ended by the supervisor, which starts that."""

from __future__ import annotations

import contextlib
import os
import signal
from enum import IntEnum
from pathlib import Path
from typing import Final

__all__ = ["GRACE_MS", "STACKS_SIGNAL", "ExitCode", "end_process", "keep_memory_out_of_cores"]

GRACE_MS: Final = 5000
"""How long after its time a call may still take before the process is ended."""
STACKS_SIGNAL: Final = signal.SIGUSR1
"""What makes a device process write into the log where each of its threads is, in whatever code it hangs."""


class ExitCode(IntEnum):
    """Exit codes of a device process that ends itself."""

    LOCK_HELD = 1
    """Code held Python's interpreter lock: see `stoker.device.lock_guard`, whose timer knows no other exit code."""
    CRASHED = 70
    """The thread of a model ended."""
    STUCK = 71
    """A run did not return."""
    CANARY_FAILED = 72
    """The device does not compute any more."""


def end_process(code: ExitCode) -> None:
    """End this process at once, wherever its threads are."""
    os._exit(code)


def keep_memory_out_of_cores() -> None:
    """Let cores of this process, and of all that it starts, have no memory: keys are in it, and what callers sent.

    `PR_SET_DUMPABLE` would do so too, but takes /proc/PID from the process's own user: from profilers, from whoever
    measures its memory, and, where it was done by the supervisor alone, `exec` would undo it.
    """
    # A kernel without cores has no such file.
    with contextlib.suppress(OSError):
        Path("/proc/self/coredump_filter").write_text("0", encoding="ascii")
