"""When queries are due: a Poisson process, drawn beforehand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Arrivals", "Query", "Schedule", "arrival_times_s"]


class Query(NamedTuple):
    """A query that is due: its source's token for it, and the reading of `time.monotonic` when it was."""

    token: int
    due_s: float


class Arrivals(Protocol):
    """Where queries come from."""

    def run(self, issue: Callable[[Query], None], stopped: threading.Event) -> None:
        """Issue every query when it is due, until the last one or until stopped."""

    def complete(self, query: Query) -> None:
        """Hear that a query has been answered."""

    def p99_ms(self) -> float | None:
        """Return the 99th percentile that the source itself has seen, if it does."""


def arrival_times_s(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Return the times within `seconds` at which a Poisson process of some rate has its arrivals."""
    random = np.random.default_rng(seed)
    likely = rate * seconds
    times_s: NDArray[np.float64] = np.empty(0)
    while not len(times_s) or times_s[-1] < seconds:
        gaps_s = random.exponential(1 / rate, int(likely + 4 * likely**0.5) + 16)
        times_s = np.concatenate([times_s, (times_s[-1] if len(times_s) else 0) + gaps_s.cumsum()])
    return times_s[times_s < seconds]


class Schedule:
    """Arrivals drawn beforehand."""

    def __init__(self, rate: float, seconds: float, seed: int) -> None:
        self._times_s = arrival_times_s(rate, seconds, seed)

    def run(self, issue: Callable[[Query], None], stopped: threading.Event) -> None:
        """See Arrivals.run."""
        begin_s = time.monotonic()
        for token, offset_s in enumerate(self._times_s.tolist()):
            due_s = begin_s + offset_s
            while (left_s := due_s - time.monotonic()) > 0:
                time.sleep(left_s)
            if stopped.is_set():
                return
            issue(Query(token, due_s))

    def complete(self, query: Query) -> None:
        """See Arrivals.complete."""

    def p99_ms(self) -> None:
        """See Arrivals.p99_ms."""
