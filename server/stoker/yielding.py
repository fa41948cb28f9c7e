"""Loading a model behind everything else that wants the cores."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["yielding_cores"]

_NICER: Final = 10
_TASKS: Final = Path("/proc/self/task")


@contextlib.contextmanager
def yielding_cores() -> Iterator[bool]:
    """Let other processes have the cores first while the body runs, this thread and all that it starts.

    Not every process may become important again (that takes CAP_SYS_NICE, or a limit RLIMIT_NICE of 20): one that
    could not does not yield in the first place. Gives whether it does.
    """
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
