"""Becomes `stoker serve`, in a process that is told to end when the one that has started it does.

Started as `python -P -m stoker.ray.child ARGUMENT …`, by the thread that is to be outlived by nobody.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final, NoReturn

__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1


def main() -> NoReturn:
    """Ask the kernel for SIGTERM at the parent's end, by which a server drains, and serve."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        # It has ended before it could be asked.
        sys.exit(0)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "stoker.cli", "serve", *sys.argv[2:]])  # noqa: S606


if __name__ == "__main__":
    main()
