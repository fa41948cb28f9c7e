"""Decides when a new version loses its share of the requests, by comparing its errors and times with the old one's.

Pure: the caller passes counters from time to time, and learns whether a bound is exceeded.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from stoker.settings.traffic import Bounds

_WINDOW_S: Final = 300.0
_CERTAINTY: Final = 3.09
"""Standard deviations: one of a thousand checks of a version exactly at the bound exceeds them."""
_QUANTILE: Final = 0.95


class Counters(Struct, frozen=True):
    """Counts of a version since it was first loaded.

    Attributes:
        failed: Requests that the server or the version failed.
        times: Number of scored requests within each time bound, and beyond the last one.
    """

    scored: int = 0
    failed: int = 0
    times: tuple[int, ...] = ()

    @property
    def requests(self) -> int:
        """All requests."""
        return self.scored + self.failed

    def since(self, before: Counters) -> Counters:
        """Return the counts since an earlier reading."""
        times = before.times or (0,) * len(self.times)
        return Counters(
            self.scored - before.scored,
            self.failed - before.failed,
            tuple(now - then for now, then in zip(self.times, times, strict=True)),
        )


class Trial:
    """A trial of a version that gets a share of the requests, compared with the old version over the same minutes.

    Args:
        bounds_s: The time bounds of `Counters.times`, in seconds.
    """

    def __init__(self, bounds: Bounds, bounds_s: Sequence[float]) -> None:
        self._bounds = bounds
        self._bounds_s = bounds_s
        self._seen: deque[tuple[float, Counters, Counters]] = deque()

    def check(self, now_s: float, old: Counters, new: Counters) -> str | None:
        """Record both versions' counters; return why the new one exceeds a bound over the last minutes, or None."""
        self._seen.append((now_s, old, new))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _WINDOW_S:
            self._seen.popleft()
        _, old_before, new_before = self._seen[0]
        before, after = old.since(old_before), new.since(new_before)
        if min(before.requests, after.requests) < self._bounds.requests:
            return None
        return self._error_reason(before, after) or self._latency_reason(before, after)

    def _error_reason(self, old: Counters, new: Counters) -> str | None:
        before, after = old.failed / old.requests, new.failed / new.requests
        deviation = math.sqrt(_variance(old) + _variance(new))
        if after - before - self._bounds.error_rate <= _CERTAINTY * deviation:
            return None
        others = f"{old.failed} of {old.requests}"
        return f"{new.failed} of its {new.requests} requests have failed, of the others {others}"

    def _latency_reason(self, old: Counters, new: Counters) -> str | None:
        if min(old.scored, new.scored) < self._bounds.requests:
            return None
        # Only certain differences count: a time may be anywhere within its bucket.
        _, at_most_s = quantile_bounds_s(self._bounds_s, old.times)
        at_least_s, _ = quantile_bounds_s(self._bounds_s, new.times)
        if at_least_s <= self._bounds.latency_ratio * at_most_s:
            return None
        return (
            f"its p95 is above {at_least_s * 1000:g} ms, that of the others at most {at_most_s * 1000:g} ms, "
            f"over {new.scored} and {old.scored} requests"
        )


def quantile_bounds_s(bounds_s: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Return between which times, in seconds, the 95th percentile of a histogram lies; 0 and infinity if empty."""
    total = sum(counts)
    if not total:
        return 0.0, math.inf
    index = bisect_left(list(accumulate(counts)), math.ceil(_QUANTILE * total))
    edges = (0.0, *bounds_s, math.inf)
    return edges[index], edges[index + 1]


def _variance(counters: Counters) -> float:
    """Return the variance of the error rate; smoothing keeps few errors from being certain."""
    rate = (counters.failed + 1) / (counters.requests + 2)
    return rate * (1 - rate) / counters.requests
