"""Rows without a server: batches, padding, isolation, and the number of a failing row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.puppets import TEXTS, PuppetRuntime

from stoker.device.batch_sizes import BatchSizes
from stoker.device.loaded_model import LoadedModel
from stoker.errors import BatchFailed, InvalidInput
from stoker.offline.rows import RowBatches
from stoker.row_isolation import RowIsolation
from stoker.tensors import Signature

PLAIN = BatchSizes()


class Buffered(PuppetRuntime):
    """A puppet with memory of its own for inputs, filled with ones."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = [np.ones((8, 2), np.float32)]

    def buffers(self) -> list[np.ndarray]:
        return self.memory


def batches_of(
    runtime: PuppetRuntime, most: int = 4, sizes: BatchSizes = PLAIN, *, apart: bool = False
) -> RowBatches:
    """A puppet as a loaded model."""
    isolation = RowIsolation(True, "tested", "a puppet", non_finite_apart=apart)
    runtime.signature = Signature(runtime.signature.inputs, runtime.signature.outputs, isolation=isolation)
    return RowBatches(LoadedModel(runtime, 0, 0, most, sizes, 1, None), "puppet")


def rows_from(count: int) -> np.ndarray:
    """Rows of two numbers, the first of which counts."""
    return np.stack([np.arange(count), np.zeros(count)], axis=1).astype(np.float32)


def test_rows_are_cut_at_the_largest_batch() -> None:
    """All rows are answered in their order, in batches of as many rows as the model takes."""
    runtime = PuppetRuntime()
    answer = batches_of(runtime).run({"x": rows_from(10)})
    assert [len(batch) for batch in runtime.batches] == [4, 4, 2]
    assert answer["y"].tobytes() == (2 * rows_from(10)).tobytes()
    assert batches_of(PuppetRuntime()).run({"x": rows_from(0)})["y"].shape == (0, 2)


@pytest.mark.parametrize("runtime", [PuppetRuntime(), Buffered()], ids=["given", "own memory"])
def test_batches_are_filled_up_to_their_buckets_with_zeros(runtime: PuppetRuntime) -> None:
    """Padding of a bucket has no earlier values, and is not answered."""
    answer = batches_of(runtime, 8, BatchSizes((4, 8))).run({"x": 1 + rows_from(9)})
    assert [len(batch) for batch in runtime.batches] == [8, 4]
    assert runtime.batches[1] == [[9, 1], [0, 0], [0, 0], [0, 0]]
    assert len(answer["y"]) == 9


def test_rows_that_are_not_finite_run_alone_as_in_a_server() -> None:
    """The others of their batch run together, and all keep their places."""
    rows = rows_from(5)
    rows[1, 1], rows[2, 1] = np.nan, np.inf
    for apart, sizes in ((True, [2, 1, 1, 1]), (False, [4, 1])):
        runtime = PuppetRuntime()
        answer = batches_of(runtime, apart=apart).run({"x": rows})
        assert [len(batch) for batch in runtime.batches] == sizes
        assert answer["y"].tobytes() == (2 * rows).tobytes()


def test_the_row_that_fails_is_named() -> None:
    """Rows that the model refuses are the caller's error; any other failure names the row."""
    runtime = PuppetRuntime()
    runtime.fails_for = {6.0}
    with pytest.raises(BatchFailed, match="row 6 could not be scored: the puppet was told to fail"):
        batches_of(runtime).run({"x": rows_from(10)})
    runtime.failure = lambda _: InvalidInput("too large")  # type: ignore[assignment,return-value]
    with pytest.raises(InvalidInput, match="row 6: too large"):
        batches_of(runtime).run({"x": rows_from(10)})


def test_batches_become_smaller_where_there_is_no_memory() -> None:
    """A batch that does not fit is run in halves, later ones have that size, and one row has to fit."""
    runtime = PuppetRuntime()
    runtime.fits_rows = 3
    batches = batches_of(runtime, 8)
    answer = batches.run({"x": rows_from(12)})
    assert answer["y"].tobytes() == (2 * rows_from(12)).tobytes()
    assert batches.request_rows == 2
    runtime.fits_rows = 0
    with pytest.raises(BatchFailed, match="no memory for one row of puppet"):
        batches.run({"x": rows_from(1)})


def test_texts_are_the_values_of_their_json() -> None:
    """A script that answers with JSON gives its values, one a row."""

    def answer(inputs: Any) -> Any:
        return [[b'{"a": 1}' if row[0] else b'"none"' for row in inputs[0]]]

    given = batches_of(PuppetRuntime(TEXTS, answer)).run({"x": rows_from(2)})
    assert given["result"].tolist() == ["none", {"a": 1}]


def test_inputs_have_the_same_number_of_rows() -> None:
    """Rows of different sizes are refused where rows have one size."""
    with pytest.raises(InvalidInput, match="x: rows have 2 numbers each"):
        batches_of(PuppetRuntime()).run({"x": [rows_from(1), rows_from(2)]})
