"""Where a version of a model runs and in what batches, as its callers may be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.settings.sequence import SequenceSettings

__all__ = ["Hosting"]


@dataclass(frozen=True, slots=True)
class Hosting:
    """How a version is hosted.

    Attributes:
        devices: The device setting of each replica: `auto`, `cpu`, `cuda:N` or a UUID.
        instances: Batches that a replica runs at the same time; None for what suits its device.
        max_batch_rows: Most rows in one batch.
        max_delay_ms: How long a row may wait for company while the device is free.
        buckets: Sizes in rows that batches are filled up to; None for what suits the device.
        precision: Of float32 products on a GPU; empty where that is not known.
        origin: Where a registered version came from, the run among it; nothing of others.
        sequence: How it keeps state for sequences; None if it keeps none.
    """

    devices: tuple[str, ...] = ()
    instances: int | None = None
    max_batch_rows: int = 1
    max_delay_ms: float = 0.0
    buckets: tuple[int, ...] | None = None
    precision: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    sequence: SequenceSettings | None = None
