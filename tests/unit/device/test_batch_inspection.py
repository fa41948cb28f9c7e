"""Inspection of the rows of batches: NaN and infinities, and rows that are kept for an audit."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from tests.puppets import ROWS

from stoker.arena import Arena
from stoker.device.batch import Batch
from stoker.device.batch_inspection import BatchInspection
from stoker.device.lanes import Lane
from stoker.device.row_blocks import RowBlock
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.row_isolation import RowIsolation

APART = RowIsolation(True, "tested", "tested with companions", 30, non_finite_apart=True)
INPUTS = [[1, 2], [np.nan, 0], [3, 4], [np.inf, 5]]


@pytest.fixture
def batch() -> Iterator[Batch]:
    """Four rows of two lanes; two of the rows hold NaN or infinities."""
    lanes, ends = {}, []
    for key in range(2):
        fd = Arena.create(ROWS, 4)
        near, far = socket.socketpair()
        lanes[key] = Lane(Arena(fd, ROWS, 4), far)
        lanes[key].arena.inputs[0][[3, 1]] = INPUTS[2 * key : 2 * key + 2]
        ends += [near, far]
        os.close(fd)
    zeros = np.zeros(2, np.int64)
    blocks = [RowBlock(key, np.array([3, 1], np.int32), zeros, zeros, zeros, 0) for key in lanes]
    yield Batch(blocks, 4, lanes, "full")
    for end in ends:
        end.close()


def inspect(isolation: RowIsolation = APART) -> BatchInspection:
    return BatchInspection(dataclasses.replace(ROWS, isolation=isolation), BatchMonitor())


def test_rows_that_are_not_finite_are_found_in_arrays_and_arenas(batch: Batch) -> None:
    """Both checks find the same rows, padding aside."""
    padded = np.array([*INPUTS, [np.nan, np.nan]], np.float32)
    for finding in (inspect().check_gathered([padded], 4), inspect().check_in_arenas(batch)):
        assert finding is not None
        assert finding.finite.tolist() == [True, False, True, False]


def test_only_models_that_need_it_have_rows_checked(batch: Batch) -> None:
    """A single row has no neighbours, and a proof that covers NaN needs no check."""
    proven = msgspec.structs.replace(APART, non_finite_apart=False)
    assert inspect(proven).check_in_arenas(batch) is None
    assert inspect(proven).check_gathered([np.array(INPUTS)], 4) is None
    assert inspect().check_gathered([np.array([[np.nan, 0]])], 1) is None
    assert inspect().check_in_arenas(batch.split(1)[1]) is None


def test_answers_that_are_not_finite_are_counted_for_finite_rows(batch: Batch) -> None:
    """The inputs are read in the arenas; padding does not count."""
    inspection = inspect()
    answers = np.array([[np.nan, 1], [np.nan, 1], [1, 1], [1, 1], [np.nan, 1]], np.float32)
    inspection.inspect_answers(batch, None, [answers], 5)
    assert inspection.monitor.non_finite_rows == 1


def test_a_row_is_kept_with_its_answer_when_one_is_wanted(batch: Batch) -> None:
    """One row of the batch or its padding; nothing is kept of a batch of one row."""
    inspection = inspect()
    answers = np.ones((5, 2), np.float32)
    inspection.monitor.wants_rows = True
    inspection.inspect_answers(batch, None, [answers[:1]], 1)
    assert inspection.monitor.kept_rows is None
    inspection.inspect_answers(batch, None, [answers], 5)
    kept = inspection.monitor.kept_rows
    assert kept is not None
    assert (kept.size, kept.answers["y"].tolist(), inspection.monitor.wants_rows) == (5, [[1, 1]], False)
    assert kept.inputs["x"].shape == (1, 2)
