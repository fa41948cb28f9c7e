"""The sizes of batches: buckets, the next smaller size, and the sizes that settings give."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.deployment import Deployment, Device
from stoker.device.batch_sizes import BatchSizes, with_batch_sizes
from stoker.errors import LoadFailed
from stoker.runtimes.base import powers_of_two

CPU = Device("cpu", 0, "CPU")
GPU = Device("cuda", 0, "GPU", "GPU-1")
MODEL = Deployment("model", 1, "onnx", Path("model.onnx"), Path(), 100, 1000)


def test_without_buckets_a_batch_runs_as_it_comes() -> None:
    """Nothing is filled up; half of a size is what to try after it, down to one row."""
    sizes = BatchSizes()
    assert [sizes.filled(rows) for rows in (1, 7, 4096)] == [1, 7, 4096]
    assert [sizes.smaller(size) for size in (9, 2, 1)] == [4, 1, None]


def test_a_batch_is_filled_up_to_the_next_bucket() -> None:
    """A size that is a bucket stays as it is."""
    sizes = BatchSizes((2, 8, 100))
    assert [sizes.filled(rows) for rows in (1, 2, 3, 8, 9, 100)] == [2, 2, 8, 8, 100, 100]


@pytest.mark.parametrize(
    ("buckets", "smaller"),
    [((1, 2, 4, 8), [4, 2, 1, None]), ((8, 24, 100), [24, 8, None]), ((60, 100), [60, None]), ((5,), [None])],
)
def test_a_smaller_size_is_a_bucket(buckets: tuple[int, ...], smaller: list[int | None]) -> None:
    """Half of it if there is such a bucket, else the next one below, else none."""
    sizes = BatchSizes(buckets)
    assert [sizes.smaller(size) for size in reversed(buckets)] == smaller


@STEADY
@given(st.integers(1, 5000))
def test_the_powers_of_two_end_with_the_largest_batch(most: int) -> None:
    """Every size has a bucket of less than twice its rows, and no bucket is larger than a batch may be."""
    buckets = powers_of_two(most)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == most
    assert all(BatchSizes(buckets).filled(rows) < 2 * rows for rows in range(1, most + 1))


@pytest.mark.parametrize(
    ("framework", "device", "expected"),
    [
        ("onnx", GPU, None),
        ("tensorflow", GPU, None),
        ("script", GPU, ()),
        ("onnx", CPU, ()),
    ],
)
def test_only_a_framework_on_a_gpu_gets_buckets_by_default(
    framework: str, device: Device, expected: tuple[int, ...] | None
) -> None:
    """The load chooses them. On the CPU padding costs time, and a script's `run` may do more than compute."""
    model = dataclasses.replace(MODEL, framework=framework)
    assert with_batch_sizes(model, device).batch_buckets == expected


def test_the_largest_bucket_is_the_largest_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A larger `max_batch_rows` is lowered to it, and the log says so; a smaller one is refused."""
    chosen = with_batch_sizes(dataclasses.replace(MODEL, batch_buckets=(4, 32)), CPU)
    assert (chosen.batch_buckets, chosen.max_batch_rows) == ((4, 32), 32)
    assert "max_batch_rows is 32, not 100" in caplog.text
    with pytest.raises(LoadFailed, match=r"batch_buckets has 128, but max_batch_rows is 100; raise"):
        with_batch_sizes(dataclasses.replace(MODEL, batch_buckets=(4, 128)), CPU)
