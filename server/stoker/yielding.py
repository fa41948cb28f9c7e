"""Loading a model behind everything else that wants the cores."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["yielding_cores"]

_NICER: Final = 10
_TRIES: Final = 20
_TRY_AGAIN_S: Final = 0.1
_TASKS: Final = Path("/proc/self/task")
# Where Linux groups tasks by session, niceness counts within a session only, and this is that of the session. It may
# be lowered again by everybody.
_AUTOGROUP: Final = Path("/proc/self/autogroup")


@contextlib.contextmanager
def yielding_cores() -> Iterator[bool]:
    """Let other processes have the cores first while the body runs, this thread and all that it starts.

    The process has to be alone in its session. Not every one may become important again (that takes CAP_SYS_NICE,
    or a limit RLIMIT_NICE of 20): one that could not yields as a session only. Gives whether it yields as a process.
    """
    _set_session(_NICER)
    try:
        with _nicer_threads() as yields:
            yield yields
    finally:
        _set_session(0)


def _set_session(nice: int) -> None:
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(nice))
        except BlockingIOError:
            # Linux takes one such change of all users in 0.1 s.
            time.sleep(_TRY_AGAIN_S)
        except OSError:
            # Not every one groups tasks so.
            return
        else:
            return


@contextlib.contextmanager
def _nicer_threads() -> Iterator[bool]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if not _may_return():
        yield False
        return
    os.setpriority(os.PRIO_PROCESS, 0, before + _NICER)
    # It can be cut off at the end of the scale.
    nicer = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        yield True
    finally:
        for task in _TASKS.iterdir():
            # Threads come and go meanwhile.
            with contextlib.suppress(OSError):
                if os.getpriority(os.PRIO_PROCESS, int(task.name)) == nicer:
                    os.setpriority(os.PRIO_PROCESS, int(task.name), before)


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
