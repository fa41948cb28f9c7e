"""The decisions of the batching scheduler, with its settings: batches that leave, and proposals to shared devices."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct

from stoker.device.row_blocks import RowBlock
from stoker.device.text_lengths import TextLengths
from stoker.settings.choices import Late


class BatchPolicy(Struct, frozen=True):
    """Settings of batching.

    Attributes:
        max_batch_rows: Most rows in one batch.
        max_delay_ms: How long a row may wait for more rows while the device is free; 0 adds no delay.
        buckets: The sizes to which batches are padded, ascending; empty if they run unpadded.
        target_ms: The default target: how long after it was queued an answer is of use; None for none.
        late: What happens to rows that will miss their target but not their deadline: `answer` runs them when
            nothing else waits, and in the padding of batches; `refuse` hands them back at once.
        weights: Weights of callers by number, 1 for callers without an entry; filled from the rows.
        lengths: The lengths of texts; None for rows of one size.
    """

    max_batch_rows: int = 256
    max_delay_ms: float = 0.0
    buckets: tuple[int, ...] = ()
    target_ms: float | None = None
    late: Late = "answer"
    weights: dict[int, float] = msgspec.field(default_factory=dict)
    lengths: TextLengths | None = None

    def __post_init__(self) -> None:
        if self.max_batch_rows < 1:
            raise ValueError(f"max_batch_rows must be at least 1, got {self.max_batch_rows}")
        if not 0 <= self.max_delay_ms <= 60_000:
            raise ValueError(f"max_delay_ms must be between 0 and 60000, got {self.max_delay_ms}")
        if self.target_ms is not None and not self.target_ms > 0:
            raise ValueError(f"target_ms must be above 0, got {self.target_ms}")


class BatchDecision(NamedTuple):
    """A decision.

    Attributes:
        batch: Blocks to run as one batch; empty if none leaves now.
        expired: Blocks to hand back unrun: cancelled, past their deadline, or certain to be past it at the end of a
            batch.
        reason: One of `metrics.REASONS` or `TARGET_REASONS` if there is a batch, else an empty string.
        check_again_ns: When to call `schedule` again if no row arrives; None: not before one arrives.
    """

    batch: list[RowBlock]
    expired: list[RowBlock]
    reason: str
    check_again_ns: int | None


class Proposal(NamedTuple):
    """The batch that a queue would run now, as offered to the other models of its device.

    Attributes:
        rows: Rows of the batch; 0 while it waits for more rows.
        cost_ns: Expected time of the batch.
        latest_ns: When it has to start so that all of its rows are in time.
        tier: The highest tier of its rows: 0 for high, 1 for normal, 2 for low; 3 for rows that are late already.
        losing: Whether running it makes other waiting rows miss their targets.
        check_again_ns: When to ask again if no row arrives; None: not before one arrives or a device is free.
    """

    rows: int
    cost_ns: int
    latest_ns: int
    tier: int
    losing: bool
    check_again_ns: int | None
