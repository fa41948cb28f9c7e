"""Batch times of simulated devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["CURVES", "Curve", "Jitter"]

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
    "resnet50-h200": Curve(0.55, 0.0106, 256),
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
        struck = self._rng.random(_DRAWN) < self._hiccups
        factors[struck] *= self._rng.uniform(2, 4, int(struck.sum()))
        drawn: list[float] = factors.tolist()
        return drawn
