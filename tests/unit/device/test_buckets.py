"""Batches that are padded to buckets: the model sees the padding, callers do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import ROWS, STEADY, TEXTS, Joined, PuppetRuntime, PuppetTicket, rows_of

from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.errors import ModelFailed
from stoker.runtimes.base import Outputs
from stoker.tensors import Signature, TensorSpec

BUCKETS = (2, 5, 8)


def filled(runtime: PuppetRuntime | None = None, **more: Any) -> Joined:
    """A worker whose batches have 2, 5 or 8 rows."""
    return Joined(runtime, capacity=64, policy=BatchPolicy(8), sizes=BatchSizes(BUCKETS), **more)


@settings(STEADY, max_examples=60)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=4), max_size=6),
    st.sets(st.integers(0, 60), max_size=3),
)
def test_the_model_sees_only_buckets_and_callers_only_their_rows(
    rounds: list[list[tuple[int, int]]], bad: set[int]
) -> None:
    """Batches have the sizes of buckets, the padding is zeros, and answers are right."""
    with filled(frontends=2) as joined:
        joined.runtime.fails_for = {float(number) for number in bad if number}
        start = 1
        for requests in rounds:
            submitted = []
            for frontend, size in requests:
                first = range(start, start + size)
                submitted.append((first, joined.submit(*first, frontend=frontend)))
                start += size
            joined.settle()
            for first, ticket in submitted:
                if joined.runtime.fails_for.intersection(first):
                    assert ticket.failure() is ModelFailed
                else:
                    assert ticket.answer is not None
                    assert ticket.answer[0].tolist() == (rows_of(*first)[0] * 2).tolist()
        batches = joined.runtime.batches
        assert {len(batch) for batch in batches} <= set(BUCKETS)
        for batch in batches:
            real = sum(1 for row in batch if row[0])
            assert batch[real:] == [[0, 0]] * (len(batch) - real)
        assert [exchange.leased_rows for exchange in joined.exchanges] == [0, 0]


def test_padding_is_counted() -> None:
    """Rows of batches count as before; those that filled them up are counted apart."""
    with filled() as joined:
        joined.submit(1, 2, 3)
        joined.settle()
        joined.submit(4)
        joined.settle()
        totals = joined.totals()
        assert [len(batch) for batch in joined.runtime.batches] == [5, 2]
        assert (totals.padding_rows, totals.batch_rows().sum) == (2 + 1, 4)


def test_a_bucket_is_filled_rather_than_padded_once_its_time_is_known() -> None:
    """Six rows are first run as eight; when five have been seen to take a quarter of that, as five and one."""
    runtime = PuppetRuntime()
    with Joined(
        runtime, capacity=64, policy=BatchPolicy(8, buckets=BUCKETS), sizes=BatchSizes(BUCKETS)
    ) as joined:
        runtime.during = lambda: joined.clock.advance_ms({2: 1, 5: 2, 8: 8}[len(runtime.batches[-1])])
        tickets = []
        for rows in (6, 4, 6):
            tickets.append(joined.submit(*range(1, rows + 1)))
            joined.settle()
        assert [len(batch) for batch in runtime.batches] == [8, 5, 5, 2]
        for rows, ticket in zip((6, 4, 6), tickets, strict=True):
            assert ticket.answer is not None
            assert ticket.answer[0].tolist() == (rows_of(*range(1, rows + 1))[0] * 2).tolist()
        assert joined.totals().padding_rows == 2 + 1 + 0 + 1


def test_rows_of_earlier_callers_do_not_come_again() -> None:
    """After a full batch a smaller one is followed by zeros, not by what the full one left there."""
    with filled() as joined:
        joined.submit(*range(1, 9))
        joined.settle()
        joined.submit(9, 10, 11)
        joined.settle()
        assert [row[0] for row in joined.runtime.batches[1]] == [9, 10, 11, 0, 0]


def test_texts_of_padding_are_dropped() -> None:
    """A model that answers with texts gives one for each row of the bucket; callers get their own."""

    def answer(inputs: Sequence[Any]) -> Outputs:
        return [[b"%d" % row[0] for row in inputs[0]]]

    with filled(PuppetRuntime(TEXTS, answer)) as joined:
        tickets = [joined.submit(1), joined.submit(2, 3)]
        joined.settle()
        assert [ticket.texts for ticket in tickets] == [[b"1"], [b"2", b"3"]]


def test_an_output_without_the_padding_fails_its_batch() -> None:
    """A model must answer the whole bucket: if it leaves rows out, they could be any caller's."""
    with filled(PuppetRuntime(ROWS, lambda inputs: [inputs[0][:1]])) as joined:
        ticket = joined.submit(1)
        joined.settle()
        assert ticket.failure() is ModelFailed


class BufferedPuppet(PuppetRuntime):
    """A model with memory of its own for inputs; notes whether its batches lie there."""

    def __init__(self, signature: Signature, rows: int) -> None:
        super().__init__(signature, self._answer)
        # As memory is that nobody has used yet.
        self._buffers = [np.full((rows, *spec.shape), 77, spec.dtype) for spec in signature.inputs]
        self.in_place: list[bool] = []

    def buffers(self) -> Sequence[np.ndarray]:
        """The memory."""
        return self._buffers

    def _answer(self, inputs: Sequence[Any]) -> Outputs:
        pairs = list(zip(inputs, self._buffers, strict=True))
        self.in_place.append(all(array.ctypes.data == memory.ctypes.data for array, memory in pairs))
        return [inputs[0] + inputs[1]]


@pytest.mark.parametrize("sizes", [BatchSizes(), BatchSizes(BUCKETS)])
def test_rows_are_gathered_in_the_runtimes_own_memory(sizes: BatchSizes) -> None:
    """One row or many, several inputs: what a GPU is to read is where it reads, filled up with zeros."""
    pair = (TensorSpec("a", "float32", (2,)), TensorSpec("b", "float32", (2,)))
    runtime = BufferedPuppet(Signature(pair, (TensorSpec("y", "float32", (2,)),)), 8)
    with Joined(runtime, policy=BatchPolicy(8), sizes=sizes) as joined:
        for first in ([1], [2, 3, 4], [5]):
            ticket = PuppetTicket()
            rows = rows_of(*first)[0]
            joined.exchange.submit(ticket, [rows, rows + 1])
            joined.settle()
            assert ticket.answer is not None
            assert ticket.answer[0].tolist() == (2 * rows + 1).tolist()
    assert runtime.in_place == [True] * 3
    expected = [[1], [2, 3, 4], [5]] if not sizes.buckets else [[1, 0], [2, 3, 4, 0, 0], [5, 0]]
    assert [[row[0] for row in batch] for batch in runtime.batches] == expected
