"""The load of a simulated device: requests as they arrive, and the times of its batches."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct


class Requests(Struct, frozen=True):
    """Requests in order of arrival.

    Attributes:
        at_ns: Arrival times, `int64[requests]`.
        rows: Number of rows of each, `int64[requests]`.
        target_ns: Latency target: how long after its arrival an answer is useful, `int64[requests]`.
        tier: 0 for high, 1 for normal, 2 for low, `int64[requests]`.
        caller: Number of the caller, `int64[requests]`.
    """

    at_ns: np.ndarray
    rows: np.ndarray
    target_ns: np.ndarray
    tier: np.ndarray
    caller: np.ndarray


class Stream(Struct, frozen=True):
    """A random stream of requests of one row, with Poisson arrivals.

    Attributes:
        rows_per_s: Average rate, in rows per second.
        target_ms: Latency target.
        caller: Number of the caller.
    """

    rows_per_s: float
    target_ms: float
    caller: int = 0

    def draw(self, seconds: float, rng: np.random.Generator) -> Requests:
        """Draw the requests of this many seconds."""
        at_s = np.sort(rng.uniform(0, seconds, rng.poisson(self.rows_per_s * seconds)))
        ones = np.ones(len(at_s), np.int64)
        return Requests(
            (at_s * 1e9).astype(np.int64),
            rows=ones,
            target_ns=round(self.target_ms * 1e6) * ones,
            tier=ones,
            caller=self.caller * ones,
        )


_DRAWN: Final = 4096


class Jitter:
    """Random lengthening of batch times beyond the curve; batches are never shorter.

    Args:
        rng: The random generator.
        spread: Standard deviation of the normal distribution whose absolute value is added, relative to the time.
        hiccups: The share of batches that take two to four times as long.
    """

    def __init__(self, rng: np.random.Generator, spread: float = 0.03, hiccups: float = 0.001) -> None:
        self._rng = rng
        self._spread = spread
        self._hiccups = hiccups
        self._factors: list[float] = []

    def factor(self) -> float:
        """Draw the factor of the next batch's time."""
        if not self._factors:
            self._factors = self._draw()
        return self._factors.pop()

    def _draw(self) -> list[float]:
        factors = 1 + np.abs(self._rng.normal(0, self._spread, _DRAWN))
        is_hiccup = self._rng.random(_DRAWN) < self._hiccups
        factors[is_hiccup] *= self._rng.uniform(2, 4, int(is_hiccup.sum()))
        drawn: list[float] = factors.tolist()
        return drawn
