"""The monitor of batches: NaN and infinities in answers to finite rows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.isolation.test_audit import batch

from stoker.isolation.batch_monitor import BatchMonitor
from stoker.tensors import all_finite


@pytest.mark.parametrize("shape", [(3,), (90, 100)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_and_infinities_are_found(shape: tuple[int, ...], dtype: str) -> None:
    """They are found in small and large arrays; numbers whose product overflows are finite."""
    array = np.full(shape, np.finfo(dtype).max, dtype)
    assert all_finite(array)
    for number in (np.nan, np.inf, -np.inf):
        array.flat[-1] = number
        assert not all_finite(array)
    array.flat[0] = -number
    assert not all_finite(array)
    assert all_finite(np.array(array.shape))


def test_answers_are_unexplained_only_where_the_row_is_finite() -> None:
    """A row with NaN in its answers counts once; a row with NaN in its inputs does not count."""
    inputs = [batch(1, np.nan, 3, 4), np.array([0, 0, np.inf, 0], np.float16)]
    outputs = [np.array([[np.nan, np.inf]] * 4, np.float32), np.arange(4)]
    monitor = BatchMonitor()
    monitor.count_non_finite(inputs, outputs, 4)
    assert monitor.non_finite_rows == 2
    monitor.count_non_finite(inputs, outputs[1:], 4)
    assert monitor.non_finite_rows == 2
    monitor.count_non_finite([batch(1)], [np.array(np.nan, np.float32)], 1)
    assert monitor.non_finite_rows == 3
