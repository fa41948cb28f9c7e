"""Client-side throttling: refusing requests that an overloaded server would refuse.

Source: the book "Site Reliability Engineering" by Google, chapter 21, "Handling Overload".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Throttle"]

WINDOW_S = 120.0
MOST_REFUSED = 2.0
"""K of the book: so many times as many requests as are accepted are sent, which is how recovery is noticed."""
_STEP_S = 1.0


class Throttle:
    """The results of one client's requests of the last two minutes; thread-safe.

    A request counts when it is answered. One in flight is not yet refused: if it were counted, the first requests of
    a client that sends many at once would be refused here.
    """

    def __init__(self, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._clock = clock
        self._chance = chance
        self._steps: deque[tuple[int, list[int]]] = deque()
        self._requests = 0
        self._accepts = 0
        self._lock = threading.Lock()

    @property
    def refused_part(self) -> float:
        """The share of requests that are refused here now: max(0, (requests - K * accepts) / (requests + 1))."""
        with self._lock:
            self._forget()
            return self._part()

    def refuses(self) -> bool:
        """Decide on one request; one that is refused here counts as one that was not accepted."""
        with self._lock:
            self._forget()
            part = self._part()
            if part <= 0 or self._chance() >= part:
                return False
            self._count(accepted=False)
            return True

    def answered(self, *, accepted: bool) -> None:
        """Say that the server took a request, whatever became of it, or that it refused it as overloaded."""
        with self._lock:
            self._forget()
            self._count(accepted=accepted)

    def _part(self) -> float:
        return max(0.0, (self._requests - MOST_REFUSED * self._accepts) / (self._requests + 1))

    def _count(self, *, accepted: bool) -> None:
        step = int(self._clock() // _STEP_S)
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, [0, 0]))
        counts = self._steps[-1][1]
        counts[0] += 1
        counts[1] += accepted
        self._requests += 1
        self._accepts += accepted

    def _forget(self) -> None:
        oldest = self._clock() // _STEP_S - WINDOW_S / _STEP_S
        while self._steps and self._steps[0][0] <= oldest:
            requests, accepts = self._steps.popleft()[1]
            self._requests -= requests
            self._accepts -= accepts
