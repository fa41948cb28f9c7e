"""Turns into `stoker serve`, in a process that is terminated when its parent ends.

Started as `python -P -m stoker_cluster.ray.child ARGUMENT …`, by the thread whose end terminates it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1


def main() -> NoReturn:
    """Request SIGTERM from the kernel at the parent's end, which drains the server, and serve."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        # The parent has ended before the request.
        sys.exit(0)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "stoker.cli", "serve", *sys.argv[2:]])  # noqa: S606


if __name__ == "__main__":
    main()
