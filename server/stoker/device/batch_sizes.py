"""The sizes of a model's batches in rows: any size, or padded to one of a few buckets.

A GPU is prepared once for each size (memory, kernels chosen by measuring, captured graphs, compiled code), and each
further size costs that again. So its batches have few sizes.
"""

from __future__ import annotations

import dataclasses
import logging
from bisect import bisect_left
from dataclasses import dataclass

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed

__all__ = ["BatchSizes", "powers_of_two", "timed_first", "with_batch_sizes"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The allowed sizes of batches.

    Attributes:
        buckets: Ascending; a batch is padded to the next of them. Empty: batches run unpadded.
    """

    buckets: tuple[int, ...] = ()

    def filled(self, rows: int) -> int:
        """The size in rows at which a batch of `rows` runs."""
        if not self.buckets:
            return rows
        return self.buckets[bisect_left(self.buckets, rows)]

    def smaller(self, size: int) -> int | None:
        """The size to try after one that did not fit: half of it, or the next smaller bucket.

        None if there is none.
        """
        if not self.buckets:
            return size // 2 or None
        below = [bucket for bucket in self.buckets if bucket < size]
        halves = [bucket for bucket in below if bucket <= size // 2]
        return max(halves) if halves else min(below, default=None)


def powers_of_two(max_batch_rows: int) -> tuple[int, ...]:
    """The powers of two below `max_batch_rows`, and `max_batch_rows` itself."""
    return (*(1 << power for power in range((max_batch_rows - 1).bit_length())), max_batch_rows)


def timed_first(buckets: tuple[int, ...], max_batch_rows: int) -> tuple[int, ...]:
    """The sizes of batches that are measured before a model serves: its buckets, or one, two, half and all rows."""
    sizes = buckets or (1, 2, max_batch_rows // 2, max_batch_rows)
    return tuple(sorted({size for size in sizes if 0 < size <= max_batch_rows}))


def with_batch_sizes(deployment: Deployment, device: Device) -> Deployment:
    """Return the deployment with the buckets and `max_batch_rows` that apply on this device.

    Raises:
        LoadFailed: A bucket is larger than `max_batch_rows`.
    """
    buckets, most = deployment.batch_buckets, deployment.max_batch_rows
    if buckets is None:
        by_default = device.kind == "cuda" and deployment.framework != "script"
        return dataclasses.replace(deployment, batch_buckets=powers_of_two(most) if by_default else ())
    if not buckets:
        return deployment
    if buckets[-1] > most:
        raise LoadFailed(
            f"{deployment.name}: batch_buckets has {buckets[-1]}, but max_batch_rows is {most}; "
            "raise max_batch_rows, or leave that bucket out"
        )
    if buckets[-1] < most:
        logger.warning(
            "%s: max_batch_rows is %d, not %d: batch_buckets has no larger one",
            deployment.name,
            buckets[-1],
            most,
        )
    return dataclasses.replace(deployment, max_batch_rows=buckets[-1])
