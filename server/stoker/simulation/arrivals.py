"""Arrivals: the times of requests and their numbers of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Requests", "Stream", "joined"]

Pattern = Literal["poisson", "gamma", "sine", "bursts"]


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival.

    Attributes:
        at_ns: Arrival times, `int64[requests]`.
        rows: Number of rows of each, `int64[requests]`.
        model: Index of the requested model, `int64[requests]`.
        target_ns: Latency target: how long after its arrival an answer is useful, `int64[requests]`.
        tier: 0 for high, 1 for normal, 2 for low, `int64[requests]`.
        caller: Number of the caller, `int64[requests]`.
    """

    at_ns: np.ndarray
    rows: np.ndarray
    model: np.ndarray
    target_ns: np.ndarray
    tier: np.ndarray
    caller: np.ndarray


@dataclass(frozen=True, slots=True)
class Stream:
    """A random stream of requests of one kind.

    Attributes:
        rows_per_s: Average rate, in rows per second.
        target_ms: Latency target.
        model: Index of the requested model.
        pattern: `poisson`; `gamma`, whose pauses have the coefficient of variation `cv`; `sine`, whose rate goes from
            nothing to twice the average and back in each second; `bursts`, at ten times the rate a tenth of the time.
        cv: Coefficient of variation of `gamma`.
        most_rows: With more than 1, the rows of requests follow a Pareto distribution of `alpha` up to it.
        alpha: Parameter of the Pareto distribution.
        tier: 0 for high, 1 for normal, 2 for low.
        caller: Number of the caller.
    """

    rows_per_s: float
    target_ms: float
    model: int = 0
    pattern: Pattern = "poisson"
    cv: float = 1.0
    most_rows: int = 1
    alpha: float = 1.1
    tier: int = 1
    caller: int = 0

    def draw(self, seconds: float, rng: np.random.Generator) -> Requests:
        """Draw the requests of this many seconds."""
        rows = self._rows(rng, 1 + int(self.rows_per_s * seconds * 1.5) + 1000)
        mean_rows = self._mean_rows()
        at_s = self._times(seconds, self.rows_per_s / mean_rows, rng)
        count = len(at_s)
        return Requests(
            (at_s * 1e9).astype(np.int64),
            rows[:count] if count <= len(rows) else self._rows(rng, count),
            np.full(count, self.model),
            np.full(count, round(self.target_ms * 1e6)),
            np.full(count, self.tier),
            np.full(count, self.caller),
        )

    def _times(self, seconds: float, rate: float, rng: np.random.Generator) -> np.ndarray:
        if self.pattern == "gamma":
            shape = 1 / self.cv**2
            # Enough even if few long gaps make up most of the time.
            count = int(rate * seconds * (1 + 4 * self.cv / max(1.0, rate * seconds) ** 0.5)) + 100
            at = rng.gamma(shape, 1 / (rate * shape), count).cumsum()
            while at[-1] < seconds:
                more = rng.gamma(shape, 1 / (rate * shape), count).cumsum()
                at = np.concatenate((at, at[-1] + more))
            return at[at < seconds]
        most = {"poisson": 1.0, "sine": 2.0, "bursts": 10.0}[self.pattern]
        at = np.sort(rng.uniform(0, seconds, rng.poisson(rate * most * seconds)))
        if self.pattern == "sine":
            at = at[rng.random(len(at)) < (1 - np.cos(2 * np.pi * at)) / 2]
        elif self.pattern == "bursts":
            # Ten bursts a second: each lasts 10 of 100 ms.
            at = at[(at * 10) % 1 < 0.1]
        return at

    def _weights(self) -> np.ndarray:
        bounds = np.arange(1, self.most_rows + 2, dtype=float)
        above = bounds**-self.alpha
        weights = above[:-1] - above[1:]
        shares: np.ndarray = weights / weights.sum()
        return shares

    def _mean_rows(self) -> float:
        return float(self._weights() @ np.arange(1, self.most_rows + 1))

    def _rows(self, rng: np.random.Generator, count: int) -> np.ndarray:
        if self.most_rows == 1:
            return np.ones(count, np.int64)
        places = self._weights().cumsum().searchsorted(rng.random(count), side="right")
        return np.minimum(places + 1, self.most_rows)


def joined(parts: list[Requests]) -> Requests:
    """Merge the requests of several streams in order of arrival."""
    order = np.concatenate([part.at_ns for part in parts]).argsort(kind="stable")
    return Requests(
        *(
            np.concatenate([getattr(part, name) for part in parts])[order]
            for name in ("at_ns", "rows", "model", "target_ns", "tier", "caller")
        )
    )
