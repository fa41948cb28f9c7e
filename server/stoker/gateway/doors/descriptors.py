"""Room for connections: a frontend keeps some descriptors for itself, and tells when it runs out of them.

Out of descriptors, libuv takes connections only to close them, and tells nobody. So connections end before that: what
is kept is enough for arenas of device processes that come back, and for files.
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

__all__ = ["Descriptors", "allow_many"]

logger = logging.getLogger(__name__)

_KEPT: Final = 64
_KEPT_SHARE: Final = 8
_SAID_EVERY_S: Final = 60.0


class Descriptors:
    """What a frontend may open."""

    def __init__(self, count: Callable[[], None], clock_s: Callable[[], float] = time.monotonic) -> None:
        """Look at the limit.

        Args:
            count: Called for each connection that is not served.
            clock_s: Seconds that only grow.
        """
        self._count = count
        self._clock_s = clock_s
        self._limit = self._most = 0
        self._unsaid = 0
        self._said_s = -math.inf
        self.look()

    def fits(self, descriptor: int) -> bool:
        """Whether a new connection with this descriptor can be served."""
        return descriptor < self._most

    def is_last(self, descriptor: int) -> bool:
        """Whether there is no room for a further connection beside the newest one, which has this descriptor."""
        # The kernel gives the lowest that is free.
        return descriptor >= self._most - 1

    def refuse(self) -> None:
        """Count a connection that is closed unserved, and say so."""
        self._count()
        self._unsaid += 1
        self._say()

    def look(self) -> bool:
        """Read the limit again; return whether a new connection would fit. Call this once a second.

        Where no descriptor is left at all, connections are closed by the event loop: that is counted as one for each
        look.
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
        self._say()
        return fits

    def _say(self) -> None:
        now_s = self._clock_s()
        if not self._unsaid or now_s - self._said_s < _SAID_EVERY_S:
            return
        logger.error(
            "out of file descriptors: connections that were closed unserved: %d; this frontend may open %d files, "
            "raise the hard limit (ulimit -Hn) or serve with more frontends",
            self._unsaid,
            self._limit,
        )
        self._said_s, self._unsaid = now_s, 0


def allow_many() -> None:
    """Let this process have as many descriptors open as it may: each connection is one, and so is each arena.

    Device processes keep the limit that the server was started with: scripts may use `select`, which takes only 1024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
