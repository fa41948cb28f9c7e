"""A simulated device whose batches take a constant time and a time for each row, and requests to one model on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from stoker.simulation.scheduler import PlannedScheduler, run_instances
from stoker.simulation.workload import Jitter, Requests
from stoker.simulation.world import Outcome, RowTable


@dataclass(frozen=True, slots=True)
class Curve:
    """The undisturbed batch time of a device: a constant part, and a part per row."""

    batch_ms: float
    row_ms: float
    max_batch_rows: int

    def batch_ns(self, rows: int) -> int:
        """The time of a batch of `rows`."""
        return round((self.batch_ms + self.row_ms * rows) * 1e6)

    @property
    def full_ns(self) -> int:
        """The time of a full batch."""
        return self.batch_ns(self.max_batch_rows)

    @property
    def peak_rows_per_s(self) -> float:
        """Throughput with full batches, in rows per second."""
        return self.max_batch_rows / self.full_ns * 1e9


A100: Final = Curve(1.7, 0.25, 64)
"""ResNet-50 on an A100, from published measurements."""


def joined(parts: Sequence[Requests]) -> Requests:
    """Merge the requests of several streams in order of arrival."""
    order = np.concatenate([part.at_ns for part in parts]).argsort(kind="stable")
    names = Requests.__struct_fields__
    return Requests(*(np.concatenate([getattr(part, name) for part in parts])[order] for name in names))


def run_alone(
    requests: Requests, curve: Curve, table: RowTable, planned: PlannedScheduler, jitter: Jitter
) -> Outcome:
    """Simulate the requests with one batch at a time."""
    outcome = run_instances(requests, curve, table, planned, jitter, 1, lambda _: 1.0)
    return msgspec.structs.replace(outcome, refused_rows=planned.refused_rows)
