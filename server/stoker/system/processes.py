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

GRACE_MS: Final = 5000
"""How long after its timeout a call may still run before the process is ended."""
STACKS_SIGNAL: Final = signal.SIGUSR1
"""Makes a process log the stack of each thread, if Python still runs in it."""
LAST_STACKS_SIGNAL: Final = signal.SIGRTMAX
"""Does the same even if C code hangs: for a process that ignored the other signal and is about to be killed."""


_STANDARD_ERROR: Final = 2
_MOST_EXPENDABLE: Final = 1000


class ExitCode(IntEnum):
    """Exit codes of a device process that ends itself."""

    LOCK_HELD = 1
    """Code held Python's interpreter lock: see `stoker.device.lock_guard`, whose timer has no other exit code."""
    CRASHED = 70
    """The thread of a model ended."""
    STUCK = 71
    """A run did not return."""
    CANARY_FAILED = 72
    """The device does not compute correctly any more."""
    NO_MEMORY = 73
    """There was no memory for what the process had to do."""


def end_process(code: ExitCode) -> None:
    """End this process at once, even if its threads hang."""
    os._exit(code)


def keep_memory_out_of_cores() -> None:
    """Exclude memory from core dumps of this process and its children: it holds keys and callers' data.

    `PR_SET_DUMPABLE` would do so too, but would hide /proc/PID from the process's own user, and so from profilers and
    memory monitors; and `exec` would undo what the supervisor alone has set.
    """
    # A kernel without cores has no such file.
    with contextlib.suppress(OSError):
        Path("/proc/self/coredump_filter").write_text("0", encoding="ascii")


def be_expendable(by: int, pid: int | None = None) -> None:
    """Make the kernel end a process before this one when memory runs out; that takes no privilege.

    Args:
        by: How many thousandths of the memory sooner.
        pid: The process; by default this one, compared with its current score.
    """
    own = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score = min(_MOST_EXPENDABLE, int(own.read_text(encoding="ascii")) + by)
        Path("/proc", "self" if pid is None else str(pid), own.name).write_text(str(score), encoding="ascii")


def write_stacks_on_signal() -> None:
    """Write the stacks of all threads when `STACKS_SIGNAL` or `LAST_STACKS_SIGNAL` comes; called on the main thread.

    Python handles the first signal, holding the interpreter lock: a handler in C would walk the frames while threads
    run on, and might crash the process. Only a main thread that hangs in C code or gets no lock needs the second one.
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

    The supervisor makes a new device process nicer before it has imported anything, and the process becomes as
    important as the others when its models are loaded. It has to be alone in its session. Becoming important again
    takes CAP_SYS_NICE, or a limit RLIMIT_NICE of 20; without them the process does not become nicer in the first
    place.

    Returns:
        The niceness to return to; None if only its session yields, which needs no privilege.
    """
    # If Linux groups tasks by session, niceness counts within a session, and sessions have their own.
    _set_session(pid, _NICER, tries=1)
    if not _may_return():
        return None
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, before + _NICER)
    return before


def stop_yielding(niceness: int | None) -> None:
    """Return to the niceness from `yield_cores`, with all threads that were started meanwhile."""
    _set_session(os.getpid(), 0, tries=_TRIES)
    if niceness is None:
        return
    nicer = os.getpriority(os.PRIO_PROCESS, os.getpid())
    for task in (_PROC / "self" / "task").iterdir():
        # Threads come and go meanwhile; only those that inherited the niceness are changed.
        with contextlib.suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, int(task.name)) == nicer:
                os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)


def _set_session(pid: int, nice: int, tries: int) -> None:
    for _ in range(tries):
        try:
            (_PROC / str(pid) / "autogroup").write_text(str(nice))
        except BlockingIOError:
            # Linux accepts one such change in 0.1 s, for all users together.
            time.sleep(_TRY_AGAIN_S)
        except OSError:
            # This kernel does not group tasks by session.
            return
        else:
            return


def _may_return() -> bool:
    """Return whether niceness can be lowered again, by trying it on a thread that ends."""
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
    """Make standard input, output and error usable, even if the caller has closed some of them."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Otherwise the next file or socket would get the number, and the output.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
    # Python sets closed streams to None.
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Paths and descriptions may have characters that the locale cannot encode.
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
    """Discard buffered output, so that Python does not try to write it once more."""
    try:
        descriptor = sys.stdout.fileno()
    except ValueError:
        return  # replaced by another object, or closed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
