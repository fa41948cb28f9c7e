"""Whether C code lets other threads run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def releases_interpreter_lock(work: Callable[[], object], most_calls: int = 1_000) -> bool:
    """Return whether another thread runs during one of the calls."""
    released = threading.Lock()
    released.acquire()
    ran: list[bool] = []

    def wait() -> None:
        released.acquire()
        ran.append(True)

    before = sys.getswitchinterval()
    # Nobody is asked to leave the lock.
    sys.setswitchinterval(1_000)
    try:
        other = threading.Thread(target=wait)
        other.start()
        released.release()
        for _ in range(most_calls):
            work()
            if ran:
                break
        found = bool(ran)
    finally:
        sys.setswitchinterval(before)
    other.join()
    return found
