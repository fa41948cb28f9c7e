"""How processes end where only a new one helps: by themselves, by the supervisor, or by the kernel for its memory."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from enum import IntEnum
from pathlib import Path
from typing import Final

__all__ = [
    "GRACE_MS",
    "LAST_STACKS_SIGNAL",
    "STACKS_SIGNAL",
    "ExitCode",
    "be_expendable",
    "end_process",
    "keep_memory_out_of_cores",
    "write_stacks_when_asked",
]

GRACE_MS: Final = 5000
"""How long after its time a call may still take before the process is ended."""
STACKS_SIGNAL: Final = signal.SIGUSR1
"""What makes a process write into the log where each of its threads is, if Python still runs in it."""
LAST_STACKS_SIGNAL: Final = signal.SIGRTMAX
"""The same in whatever code it hangs, if it did not heed the other one: for a process that is about to be killed."""


_STANDARD_ERROR: Final = 2
_MOST_EXPENDABLE: Final = 1000


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


def be_expendable(by: int, pid: int | None = None) -> None:
    """Where memory runs out, let the kernel end a process before this one; that takes no privilege.

    Args:
        by: How many thousandths of the memory sooner.
        pid: The process; by default this one, compared with what it was itself.
    """
    own = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score = min(_MOST_EXPENDABLE, int(own.read_text(encoding="ascii")) + by)
        Path("/proc", "self" if pid is None else str(pid), own.name).write_text(str(score), encoding="ascii")


def write_stacks_when_asked() -> None:
    """Write where all threads are when one of these signals comes; called on the main thread.

    Threads run on while a handler of C walks their frames, and the process may crash of it: so the first signal is
    heeded by Python, which holds the interpreter lock then. Only a main thread that does not come to that, because it
    hangs in code of C or gets no lock, leaves it to the second one.
    """

    def write_stacks(*_: object) -> None:
        signal.signal(LAST_STACKS_SIGNAL, signal.SIG_IGN)
        faulthandler.dump_traceback(file=_STANDARD_ERROR)

    signal.signal(STACKS_SIGNAL, write_stacks)
    faulthandler.register(LAST_STACKS_SIGNAL, file=_STANDARD_ERROR)
