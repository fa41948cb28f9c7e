"""Loading a model behind everything else that wants the cores.

The supervisor makes a new device process nicer before it has imported anything, and the process becomes as important
as the others when its models are loaded.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

__all__ = ["stop_yielding", "yield_cores"]

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
