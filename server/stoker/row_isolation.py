"""Whether rows of different callers may share a batch, and how that is known."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class RowIsolation(Struct, frozen=True):
    """The result of testing a model's rows when it was loaded, or while it served.

    Attributes:
        batched: Whether rows of different requests may run as one batch.
        how: `read` from the graph, `tested` with companions, `said` by the operator, `declared` by the model (which
            has no batch axis) or by its script, or `watched` while it served.
        reason: The reason for the operator: one sentence without a full stop.
        companions: In how many batches with companions it was tested.
        non_finite_apart: Whether rows with NaN or infinities are kept apart from rows of other requests, because the
            tests did not include such values.
        difference: The largest difference between an answer alone and in a batch, relative to the largest number of
            that output; None if that was not compared.
        setting: The setting that changes the finding, as it would be written; empty if none does.
        keeps_state: Whether requests change the model, other than the state of a sequence; then nothing else runs.
    """

    batched: bool
    how: Literal["read", "tested", "said", "declared", "watched"]
    reason: str
    companions: int = 0
    non_finite_apart: bool = False
    difference: float | None = None
    setting: str = ""
    keeps_state: bool = False

    def __str__(self) -> str:
        text = f"{'batched' if self.batched else 'not batched'}: {self.reason}"
        return f"{text} ({self.setting} changes that)" if self.setting else text
