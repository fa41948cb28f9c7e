"""Sizes of batches that are added while a model serves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_S
from tests.pipelined_puppets import PipelinedJoined, PuppetSizes
from tests.puppets import STEADY, rows_of

from stoker.device import bucket_watch
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.device.bucket_watch import missing_size
from stoker.errors import OperatorError
from stoker.runtimes.base import OutOfMemory

BUCKETS = (1, 8, 32)
MS = 1_000_000


def time_ns(size: int) -> int:
    """As much for a batch as for twenty rows: 20 rows in the time of 32 are more in a second than 8."""
    return 20 * MS + size * MS


def counted(**batches: int) -> list[int]:
    """How many batches had so many rows, as `rows_9=5`."""
    counts = [0] * (BUCKETS[-1] + 1)
    for rows, count in batches.items():
        counts[int(rows.removeprefix("rows_"))] = count
    return counts


@pytest.mark.parametrize(
    ("batches", "size"),
    [
        (counted(rows_8=50, rows_32=50, rows_1=9), None),
        # Batches of 10 rows take the time of 32.
        (counted(rows_10=100), 10),
        # 12 rows serve those of 10 too, which are few.
        (counted(rows_10=5, rows_12=100), 12),
        # Most batches have no padding.
        (counted(rows_10=10, rows_32=100), None),
        (counted(rows_3=100, rows_20=1), 3),
    ],
)
def test_the_size_that_saves_most_is_missing(batches: list[int], size: int | None) -> None:
    """A size is missing if 15 % of the time is padding."""
    found = missing_size(batches, BUCKETS, time_ns)
    assert (None if found is None else found[0]) == size


@STEADY
@given(st.lists(st.integers(0, 100), min_size=BUCKETS[-1] + 1, max_size=BUCKETS[-1] + 1))
def test_a_missing_size_is_none_that_there_is(batches: list[int]) -> None:
    """Batches of it have occurred, and with it less of the time is padding."""
    batches[0] = 0
    found = missing_size(batches, BUCKETS, time_ns)
    if found is None:
        return
    size, share = found
    assert size not in BUCKETS
    assert batches[size]
    rows = np.arange(1, len(batches))
    exact_ns = float((batches[1:] * (20 * MS + rows * MS)).sum())

    def padding(buckets: Sequence[int]) -> float:
        padded = np.array([time_ns(min(bucket for bucket in buckets if bucket >= row)) for row in rows])
        return float((batches[1:] * padded).sum()) / exact_ns

    assert share == pytest.approx(1 - 1 / padding(BUCKETS))
    assert padding((*BUCKETS, size)) < padding(BUCKETS)


def served(monkeypatch: pytest.MonkeyPatch, *, chosen: bool = True) -> PipelinedJoined:
    """A model with these buckets, ten batches of which are looked at together."""
    monkeypatch.setattr(bucket_watch, "_BATCHES", 10)
    runtime = PuppetSizes()
    runtime.sizes, runtime.takes_ns = BUCKETS, time_ns
    joined = PipelinedJoined(
        runtime,
        policy=BatchPolicy(32, buckets=BUCKETS),
        sizes=BatchSizes(BUCKETS, chosen=chosen),
        capacity=64,
    )
    joined.worker.teach((size, time_ns(size)) for size in BUCKETS)
    return joined


def ask(joined: PipelinedJoined, rows: int, times: int) -> None:
    """Requests of so many rows, one after the other; their answers are right."""
    for _ in range(times):
        ticket = joined.submit(*range(1, rows + 1))
        joined.settle()
        assert ticket.answer is not None
        assert ticket.answer[0].tolist() == (rows_of(*range(1, rows + 1))[0] * 2).tolist()


def rest(joined: PipelinedJoined) -> None:
    """Let the opening of a size end, and the first thread find nothing to do."""
    watch = joined.worker._watch  # type: ignore[attr-defined]
    if watch._opening is not None:
        watch._opening.join(PATIENCE_S)
    joined.turn_device()


def test_a_size_is_added_once_padding_costs_much(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is opened beside serving, added when nothing is in flight, and used from then on."""
    caplog.set_level("INFO")
    with served(monkeypatch) as joined:
        runtime = joined.pipeline
        assert isinstance(runtime, PuppetSizes)
        ask(joined, 20, 9)
        assert (runtime.opened, joined.worker.cap.policy.buckets) == ([], BUCKETS)
        ask(joined, 20, 1)
        rest(joined)
        assert runtime.opened == [20]
        assert runtime.sizes == joined.worker.cap.policy.buckets == (1, 8, 20, 32)
        assert "23 % of the device's time is padding: preparing batches of 20 rows" in caplog.text
        before = joined.totals().padding_rows
        ask(joined, 20, 10)
        assert joined.totals().padding_rows == before == 10 * 12


def test_sizes_that_were_set_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that the operator has set stay, however much padding they cost."""
    with served(monkeypatch, chosen=False) as joined:
        ask(joined, 20, 20)
        assert joined.pipeline.sizes == BUCKETS


@pytest.mark.parametrize("failure", [OutOfMemory("no memory"), OperatorError("no session")])
def test_a_size_that_cannot_be_added_is_left_out(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model serves as before, and the size is not tried again."""
    with served(monkeypatch) as joined:
        runtime = joined.pipeline
        assert isinstance(runtime, PuppetSizes)
        runtime.add_fails = {20: failure}
        ask(joined, 20, 10)
        rest(joined)
        assert f"batches of 20 rows cannot be prepared: {failure}" in caplog.text
        ask(joined, 20, 20)
        rest(joined)
        assert (runtime.opened, runtime.sizes) == ([20], BUCKETS)
