"""Batches as their rows tell them, in one number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stoker.metrics.counters import BatchFacts, packed_facts
from stoker.metrics.layout import REASONS, TARGET_REASONS


def lot(*positions: int) -> Any:
    return SimpleNamespace(position=np.array(positions))


@pytest.mark.parametrize("reason", [*REASONS, *TARGET_REASONS])
def test_batch_facts_survive_packing(reason: str) -> None:
    """Facts of each reason are packed into a positive int64, as headers of rows have."""
    for rows, size, lots, requests in (
        (1, 1, [lot(0)], 1),
        (1, 4, [lot(0)], 1),
        (5, 8, [lot(0, 1, 2), lot(0, 0)], 3),
        (2, 2, [lot(3, 4)], 1),
        (65_536, 65_536, [SimpleNamespace(position=np.zeros(65_536, np.int64))], 65_536),
    ):
        word = packed_facts(rows, size, reason, lots)
        assert 0 < word < 1 << 63
        assert BatchFacts.unpacked(word) == (rows, size - rows, requests, reason)


def test_rows_that_were_not_run_tell_nothing() -> None:
    """Their headers have 0."""
    assert BatchFacts.unpacked(0) is None
