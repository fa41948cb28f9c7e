"""The load of a simulated device: requests as they arrive, and the times of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

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
            # Enough gaps also if a few long ones fill most of the time.
            count = int(rate * seconds * (1 + 4 * self.cv / max(1.0, rate * seconds) ** 0.5)) + 100
            at = rng.gamma(shape, 1 / (rate * shape), count).cumsum()
            while at[-1] < seconds:
                further = rng.gamma(shape, 1 / (rate * shape), count).cumsum()
                at = np.concatenate((at, at[-1] + further))
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


_DRAWN: Final = 4096


@dataclass(frozen=True, slots=True)
class Curve:
    """The undisturbed batch time of a device: a constant part, and a part per row.

    Attributes:
        batch_ms: The constant part.
        row_ms: The part per row, padding included.
        max_batch_rows: Limit of rows per batch.
        buckets: The sizes that batches are padded to, ascending; empty for no padding.
    """

    batch_ms: float
    row_ms: float
    max_batch_rows: int
    buckets: tuple[int, ...] = ()

    def batch_ns(self, rows: int) -> int:
        """The time of a batch of `rows`."""
        size = next((bucket for bucket in self.buckets if bucket >= rows), rows)
        return round((self.batch_ms + self.row_ms * size) * 1e6)

    @property
    def full_ns(self) -> int:
        """The time of a full batch."""
        return self.batch_ns(self.max_batch_rows)

    @property
    def peak_rows_per_s(self) -> float:
        """Throughput with full batches, in rows per second."""
        return self.max_batch_rows / self.full_ns * 1e9


CURVES: Final[Mapping[str, Curve]] = {
    # From published measurements; see server/docs/scheduling.md.
    "resnet50-a100": Curve(1.7, 0.25, 64),
    "resnet50-v100": Curve(2.05, 0.147, 128),
    "resnet50-h200-published": Curve(0.55, 0.0106, 256),
    "bert-h200": Curve(2.2, 0.125, 64),
    "mlp-graph": Curve(0.13, 0.0009, 256, (1, 2, 4, 8, 16, 32, 64, 128, 256)),
}
"""Devices and models by name."""


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
