"""Where and with which batch settings a version of a model runs, as reported to callers."""

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
        instances: Number of concurrent batches of a replica; None for the device's default.
        max_batch_rows: Limit of rows per batch.
        max_delay_ms: How long a row may wait for further rows while the device is idle.
        buckets: Sizes in rows that batches are padded to; None for the device's default.
        precision: Precision of float32 products on a GPU; empty if unknown.
        origin: The origin of a registered version, such as its run; empty for others.
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
