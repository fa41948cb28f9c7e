"""When a new version loses its part of the requests: its errors and times are held against the old one's.

Pure: whoever has counters notes them from time to time, and is told whether a bound is passed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from stoker.settings.traffic import Bounds

__all__ = ["Counters", "Trial", "quantile_bounds_s"]

_WINDOW_S: Final = 300.0
_CERTAINTY: Final = 3.09
"""So many standard deviations: one of a thousand looks at versions that are at the bound is beyond that."""
_QUANTILE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Counters:
    """What a version has counted since it was loaded first.

    Attributes:
        scored: Requests that were answered with 200.
        failed: Requests that the server or the version has failed.
        times: How many of the former were answered within each of the bounds of time, and behind the last one.
    """

    scored: int = 0
    failed: int = 0
    times: tuple[int, ...] = ()

    @property
    def requests(self) -> int:
        """All of them."""
        return self.scored + self.failed

    def since(self, before: Counters) -> Counters:
        """What has been counted since then."""
        times = before.times or (0,) * len(self.times)
        return Counters(
            self.scored - before.scored,
            self.failed - before.failed,
            tuple(now - then for now, then in zip(self.times, times, strict=True)),
        )


class Trial:
    """A version that gets a part of the requests, beside the one that it may take over from, in the same minutes."""

    def __init__(self, bounds: Bounds, bounds_s: Sequence[float]) -> None:
        """Begin.

        Args:
            bounds: What is too much.
            bounds_s: The bounds of `Counters.times`, in seconds.
        """
        self._bounds = bounds
        self._bounds_s = bounds_s
        self._seen: deque[tuple[float, Counters, Counters]] = deque()

    def look(self, now_s: float, old: Counters, new: Counters) -> str | None:
        """Note what both have counted; returns why the new one is beyond a bound over the last minutes, if it is.

        Args:
            now_s: The time.
            old: The counters of the old version.
            new: Those of the new one.
        """
        self._seen.append((now_s, old, new))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _WINDOW_S:
            self._seen.popleft()
        _, old_before, new_before = self._seen[0]
        before, after = old.since(old_before), new.since(new_before)
        if min(before.requests, after.requests) < self._bounds.requests:
            return None
        return self._too_many_errors(before, after) or self._too_slow(before, after)

    def _too_many_errors(self, old: Counters, new: Counters) -> str | None:
        before, after = old.failed / old.requests, new.failed / new.requests
        deviation = math.sqrt(_variance(old) + _variance(new))
        if after - before - self._bounds.error_rate <= _CERTAINTY * deviation:
            return None
        others = f"{old.failed} of {old.requests}"
        return f"{new.failed} of its {new.requests} requests have failed, of the others {others}"

    def _too_slow(self, old: Counters, new: Counters) -> str | None:
        if min(old.scored, new.scored) < self._bounds.requests:
            return None
        # Only what is certain counts: within one of its bounds a time may be anywhere.
        _, at_most_s = quantile_bounds_s(self._bounds_s, old.times)
        at_least_s, _ = quantile_bounds_s(self._bounds_s, new.times)
        if at_least_s <= self._bounds.latency_ratio * at_most_s:
            return None
        return (
            f"its p95 is above {at_least_s * 1000:g} ms, that of the others at most {at_most_s * 1000:g} ms, "
            f"over {new.scored} and {old.scored} requests"
        )


def quantile_bounds_s(bounds_s: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Return between which times, in seconds, the 95th percentile of a histogram lies; 0 and infinity without any."""
    total = sum(counts)
    if not total:
        return 0.0, math.inf
    index = bisect_left(list(accumulate(counts)), math.ceil(_QUANTILE * total))
    edges = (0.0, *bounds_s, math.inf)
    return edges[index], edges[index + 1]


def _variance(counters: Counters) -> float:
    """That of the error rate; one error more and one request more that is none keep few errors from being certain."""
    rate = (counters.failed + 1) / (counters.requests + 2)
    return rate * (1 - rate) / counters.requests
