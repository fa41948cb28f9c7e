"""The file descriptors of a frontend: each connection is one.

Out of descriptors, libuv accepts connections only to close them, and reports nothing. So a frontend keeps some
descriptors for itself, enough for arenas of device processes that come back, and for files.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import resource
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_KEPT: Final = 64
_KEPT_SHARE: Final = 8
_LOG_EVERY_S: Final = 60.0


class Descriptors:
    """The file descriptors that a frontend may open."""

    def __init__(self, count: Callable[[], None], clock_s: Callable[[], float] = time.monotonic) -> None:
        """Read the limit; `count` is called for each connection that is not served."""
        self._count = count
        self._clock_s = clock_s
        self._limit = self._most = 0
        self._unlogged = 0
        self._logged_s = -math.inf
        self.check()

    def fits(self, descriptor: int) -> bool:
        """Whether a new connection with this descriptor can be served."""
        return descriptor < self._most

    def is_last(self, descriptor: int) -> bool:
        """Whether there is no room for a further connection beside the newest one, which has this descriptor."""
        # The kernel gives the lowest that is free.
        return descriptor >= self._most - 1

    def refuse(self) -> None:
        """Count and log a connection that is closed unserved."""
        self._count()
        self._unlogged += 1
        self._log()

    def check(self) -> bool:
        """Read the limit again; return whether a new connection would fit. Call this once a second.

        If no descriptor is left at all, the event loop closes connections: each check counts as one of them.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = (1 << 62) if soft == resource.RLIM_INFINITY else soft
        self._most = self._limit - min(_KEPT, self._limit // _KEPT_SHARE)
        fits = True
        try:
            lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                fits = False
                self.refuse()
        else:
            os.close(lowest_free)
            fits = self.fits(lowest_free)
        self._log()
        return fits

    def _log(self) -> None:
        now_s = self._clock_s()
        if not self._unlogged or now_s - self._logged_s < _LOG_EVERY_S:
            return
        logger.error(
            "out of file descriptors: connections that were closed unserved: %d; this frontend may open %d files, "
            "raise the hard limit (ulimit -Hn) or serve with more frontends",
            self._unlogged,
            self._limit,
        )
        self._logged_s = now_s
        self._unlogged = 0


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as it may: each connection is one, and so is each arena.

    Device processes keep the limit that the server was started with: scripts may use `select`, which takes only 1024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
