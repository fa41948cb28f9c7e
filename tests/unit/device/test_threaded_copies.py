"""Large rows are copied by several threads where that is faster, and are the same rows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.device.row_transfer import Gathering
from stoker.device.threaded_copies import LARGE_BYTES, ThreadedCopies
from stoker.tensors import Signature, TensorSpec

ROWS = 40


def blocks_of(counts: list[int], seed: int) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Rows of several arenas, where they go, and what is to be there."""
    random = np.random.default_rng(seed)
    blocks, expected = [], []
    for count in counts:
        source = random.random((ROWS, 3)).astype(np.float32)
        numbers = random.integers(0, ROWS, count).astype(np.int32)
        blocks.append((SimpleNamespace(inputs=[source]), numbers))
        expected.append(source[numbers])
    return blocks, np.zeros((sum(counts), 3), np.float32), np.concatenate(expected)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(2, 5), st.integers(0, 1000))
def test_rows_are_the_same_however_they_are_copied(counts: list[int], threads: int, seed: int) -> None:
    """By one thread and by several, from one arena and from many, also where there are fewer rows than threads."""
    copies = ThreadedCopies(lambda: 0, threads)
    for threaded in (False, True):
        copies.threaded = threaded
        blocks, out, expected = blocks_of(counts, seed)
        copies.gather(blocks, 0, out)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("one_ns", "several_ns", "threaded"), [(100, 40, True), (40, 100, False), (50, 50, False)]
)
def test_the_faster_way_is_kept(one_ns: int, several_ns: int, threaded: bool) -> None:
    """Each way copies four times, in turns, after one that does not count; then the faster one stays."""
    turns = [(9000, 1), *[(one_ns, several_ns)] * 4]
    times = iter([t for turn in turns for elapsed in turn for t in (0, elapsed)])
    copies = ThreadedCopies(lambda: next(times), 2)
    for number in range(10):
        assert copies.threaded is None, number
        blocks, out, expected = blocks_of([5, 2], number)
        copies.gather(blocks, 0, out)
        np.testing.assert_array_equal(out, expected)
    assert copies.threaded is threaded
    # No further look at the clock.
    blocks, out, _ = blocks_of([5], 0)
    copies.gather(blocks, 0, out)


def test_one_core_needs_no_thread() -> None:
    """One core has nothing to compare."""
    assert ThreadedCopies(lambda: 0, 1).threaded is False


def test_a_failed_copy_raises() -> None:
    """The error of any thread is raised."""
    copies = ThreadedCopies(lambda: 0, 2)
    copies.threaded = True
    blocks, _, _ = blocks_of([4], 0)
    with pytest.raises(ValueError, match="output array does not match"):
        copies.gather(blocks, 0, np.zeros((4, 2), np.float32))


def test_large_rows_of_a_batch_are_gathered_by_threads() -> None:
    """Those of all frontends, and the padding behind them is zero."""
    spec = TensorSpec("x", "float32", (LARGE_BYTES // 8,))
    runtime: Any = SimpleNamespace(signature=Signature((spec,), (spec,)), run=None)
    copies = ThreadedCopies(lambda: 0, 2)
    gathering = Gathering(runtime, 4, copies, fills=True)
    arenas: list[Any] = [
        SimpleNamespace(inputs=[np.full((3, *spec.shape), value, np.float32)]) for value in (1, 2)
    ]
    blocks = [(arenas[0], np.array([2, 0], np.int32)), (arenas[1], np.array([1], np.int32))]
    (batch,) = gathering.batch(blocks, 3, 4)
    assert batch[:, 0].tolist() == batch[:, -1].tolist() == [1, 1, 2, 0]
    copies.threaded = True
    (batch,) = gathering.batch(blocks[::-1], 3, 4)
    assert batch[:, 0].tolist() == batch[:, -1].tolist() == [2, 1, 1, 0]
