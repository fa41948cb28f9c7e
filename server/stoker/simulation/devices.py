"""What batches take on the devices that are simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["CURVES", "Curve", "Jitter"]

_DRAWN: Final = 4096


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of a batch on a device that nothing disturbs: a part for the batch, and one for each row.

    Attributes:
        batch_ms: The part for the batch.
        row_ms: The part for each row, those that fill it up included.
        max_batch_rows: Most rows in a batch.
        buckets: The sizes up to which batches are filled, ascending; empty if they run as they come.
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
        """Rows in a second if all batches are full."""
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
    """How much longer batches take than their curve says: they are never shorter.

    Args:
        rng: Where chance comes from.
        spread: Standard deviation of the normal distribution whose size is added, as a part of the time.
        hiccups: How many of all batches take two to four times as long.
    """

    def __init__(self, rng: np.random.Generator, spread: float = 0.03, hiccups: float = 0.001) -> None:
        self._rng = rng
        self._spread = spread
        self._hiccups = hiccups
        self._factors: list[float] = []

    def factor(self) -> float:
        """The next batch's."""
        if not self._factors:
            self._factors = self._draw()
        return self._factors.pop()

    def _draw(self) -> list[float]:
        factors = 1 + np.abs(self._rng.normal(0, self._spread, _DRAWN))
        struck = self._rng.random(_DRAWN) < self._hiccups
        factors[struck] *= self._rng.uniform(2, 4, int(struck.sum()))
        drawn: list[float] = factors.tolist()
        return drawn
