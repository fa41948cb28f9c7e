"""Processes: standard streams, exit codes, stack dumps, and which one gives way when memory or cores are short."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    "flushed_output",
    "keep_memory_out_of_cores",
    "open_standard_streams",
    "stop_yielding",
    "write_stacks_when_asked",
    "yield_cores",
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


_NICER: Final = 10
_TRIES: Final = 20
_TRY_AGAIN_S: Final = 0.1
_PROC: Final = Path("/proc")


def yield_cores(pid: int) -> int | None:
    """Let other processes have the cores before one that was just started, until it calls `stop_yielding`.

    It has to be alone in its session. Not everybody may become important again (that takes CAP_SYS_NICE, or a limit
    RLIMIT_NICE of 20): who could not does not yield in the first place.

    Returns:
        The niceness to return to; None if only its session yields, which needs no privilege.
    """
    # Where Linux groups tasks by session, niceness counts within a session, and sessions have one of their own.
    _set_session(pid, _NICER, tries=1)
    if not _may_return():
        return None
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, before + _NICER)
    return before


def stop_yielding(niceness: int | None) -> None:
    """Be as important as before `yield_cores`, with all threads that were started meanwhile.

    Args:
        niceness: What `yield_cores` has returned.
    """
    _set_session(os.getpid(), 0, tries=_TRIES)
    if niceness is None:
        return
    nicer = os.getpriority(os.PRIO_PROCESS, os.getpid())
    for task in (_PROC / "self" / "task").iterdir():
        # Threads come and go meanwhile; others than those that inherited it know why they are nicer.
        with contextlib.suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, int(task.name)) == nicer:
                os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)


def _set_session(pid: int, nice: int, tries: int) -> None:
    for _ in range(tries):
        try:
            (_PROC / str(pid) / "autogroup").write_text(str(nice))
        except BlockingIOError:
            # Linux takes one such change of all users in 0.1 s.
            time.sleep(_TRY_AGAIN_S)
        except OSError:
            # Not every one groups tasks so.
            return
        else:
            return


def _may_return() -> bool:
    """Try it out on a thread that ends: niceness belongs to threads."""
    allowed = []

    def there_and_back() -> None:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before + 1)
            os.setpriority(os.PRIO_PROCESS, 0, before)
            allowed.append(True)

    thread = threading.Thread(target=there_and_back)
    thread.start()
    thread.join()
    return bool(allowed)


def open_standard_streams() -> None:
    """Make standard input, output and error usable, however little of them the caller has given."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Else the next file or socket would get the number, and what is printed.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
    # Python has none for those that were closed.
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path or a description may have letters that the locale has not.
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def flushed_output() -> Iterator[None]:
    """Flush standard output at the end of the block; an exception of the block goes before one of the stream.

    Raises:
        OSError: The output cannot be written. Python would notice only when it exits: it would report an ignored
            exception, and exit with 120.
    """
    try:
        yield
    except Exception:
        with suppress(OSError):
            _flush_stdout()
        raise
    except BaseException:
        _flush_stdout()
        raise
    _flush_stdout()


def _flush_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
        raise


def _discard_stdout() -> None:
    """Let what was printed and has not left go nowhere, so that nobody tries to write it once more."""
    try:
        descriptor = sys.stdout.fileno()
    except ValueError:
        return  # one that somebody else has put there, or that is closed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
