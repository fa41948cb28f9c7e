"""Batches of rows of several lanes: their parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.batch import Batch
from stoker.device.row_blocks import RowBlock


def batch_of(sizes: list[int]) -> tuple[Batch, list[tuple[int, int]]]:
    """A batch with a block of each size, and its rows: lane and number."""
    blocks, rows = [], []
    for lane, size in enumerate(sizes):
        numbers = np.arange(10, 10 + size)
        blocks.append(RowBlock(lane, numbers, numbers, numbers, numbers, 0))
        rows += [(lane, number) for number in numbers.tolist()]
    return Batch(blocks, len(rows), {}, "full"), rows


def rows_in(batch: Batch) -> list[tuple[int, int]]:
    """Lane and number of each row."""
    return [(block.lane, number) for block in batch.blocks for number in block.numbers.tolist()]


@settings(STEADY, max_examples=60)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=8), st.integers(1, 12))
def test_a_batch_is_split_in_order(sizes: list[int], most_rows: int) -> None:
    """Its parts hold the same rows of the same lanes in the same order, all but the last as many as they may."""
    batch, rows = batch_of(sizes)
    parts = batch.split(most_rows)
    assert [row for part in parts for row in rows_in(part)] == rows
    assert [part.rows for part in parts] == [len(rows_in(part)) for part in parts]
    assert all(part.rows == most_rows for part in parts[:-1])
    assert 1 <= parts[-1].rows <= most_rows


@settings(STEADY, max_examples=60)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_rows_that_need_it_run_apart(sizes: list[int], data: st.DataObject) -> None:
    """The others form one batch in their order; each of these rows is a batch of its own."""
    batch, rows = batch_of(sizes)
    together = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    parts = batch.apart(together)
    kept = [row for row, is_kept in zip(rows, together, strict=True) if is_kept]
    if kept:
        assert rows_in(parts[0]) == kept
        parts = parts[1:]
    assert [rows_in(part) for part in parts] == [
        [row] for row, is_kept in zip(rows, together, strict=True) if not is_kept
    ]
    assert all(part.rows == 1 for part in parts)
