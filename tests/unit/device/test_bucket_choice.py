"""The sizes of batches that are chosen from measured times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.batch_sizes import BatchSizes
from stoker.device.bucket_choice import (
    candidate_sizes,
    choose_buckets,
    gains_by_growing,
)

RESNET50_MS = {1: 0.581, 8: 1.049, 32: 2.724, 64: 5.155, 128: 10.14, 256: 20.11}
"""ResNet-50 in float16 on an H200, by ONNX Runtime alone, 2026-11-26."""
SIZES = candidate_sizes(256)


def times_of(points_ms: dict[int, float]) -> dict[int, float]:
    """The times of all sizes in nanoseconds, interpolated."""
    return dict(zip(SIZES, np.interp(SIZES, [*points_ms], [*points_ms.values()]) * 1e6, strict=True))


RESNET50 = times_of(RESNET50_MS)
TIMES = st.lists(st.floats(1e4, 1e7), min_size=1, max_size=len(SIZES)).map(
    lambda times: dict(zip(SIZES, times, strict=False))
)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (100, (1, 2, 4, 8, 16, 32, 48, 64, 96, 100)),
        (256, (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)),
    ],
)
def test_few_sizes_are_timed(most: int, sizes: tuple[int, ...]) -> None:
    """Powers of two, from 32 on also half-way between them, and the largest batch."""
    assert candidate_sizes(most) == sizes


def test_larger_batches_are_timed_while_they_gain() -> None:
    """ResNet-50 on an H200 gains 1.7 % from 64 rows to 128, so 192 and 256 need not be prepared."""
    timed: dict[int, float] = {}
    for size in SIZES:
        timed[size] = RESNET50[size]
        if not gains_by_growing(timed):
            break
    assert [*timed] == [1, 2, 4, 8, 16, 32, 48, 64, 96, 128]
    assert choose_buckets(timed).buckets == choose_buckets(RESNET50).buckets


def test_a_hiccup_of_a_short_batch_does_not_end_the_search() -> None:
    """A perceptron on an H200: 8 rows seemed to take twice as long as 4, and batches were cut off there."""
    timed: dict[int, float] = {}
    for size in SIZES:
        timed[size] = 62_000 if size == 8 else 21_000 + 100 * size
        if not gains_by_growing(timed):
            break
    assert max(timed) == 256
    assert choose_buckets(timed).buckets[-1] == 256


@pytest.mark.parametrize(
    ("target_ms", "largest"),
    [(None, 64), (100, 64), (15, 64), (5, 48), (3, 32), (2, 16), (0.5, 1)],
)
def test_the_largest_batch_of_resnet50_on_an_h200(target_ms: float | None, largest: int) -> None:
    """Without a target 64 rows: 97 % of the throughput of 256 rows, in a quarter of the time."""
    choice = choose_buckets(RESNET50, target_ms)
    assert choice.buckets == tuple(size for size in SIZES if size <= largest)
    assert "batches of 64 do 12,415 rows/s, of 256 12,730" in choice.reason
    assert ("target_ms" in choice.reason) == (largest < 64)


def test_sizes_that_save_nothing_are_left_out() -> None:
    """A small network takes about as long for 1 row as for 8, which then need no sizes between them."""
    small = {size: 130_000 + 900 * size for size in SIZES}
    assert choose_buckets(small).buckets == (1, 8, 32, 64, 96, 128, 192, 256)


@STEADY
@given(TIMES)
def test_the_largest_is_the_smallest_of_the_fast_ones(times: dict[int, float]) -> None:
    """No smaller size has within 3 % of the best throughput, and it has it itself."""
    best = max(size / time for size, time in times.items())
    fast = [size for size, time in times.items() if size / time >= best / 1.03]
    assert choose_buckets(times).buckets[-1] == min(fast)


@STEADY
@given(TIMES)
def test_padding_costs_at_most_a_ninth_of_the_time(times: dict[int, float]) -> None:
    """A timed size without a bucket of its own has the next one, and each bucket was timed."""
    buckets = choose_buckets(times).buckets
    assert list(buckets) == sorted(set(buckets) & set(times))
    assert buckets[0] == min(times)
    for size, time in times.items():
        if size <= buckets[-1]:
            assert times[BatchSizes(buckets).filled(size)] <= time / 0.9 * (1 + 1e-9)


@STEADY
@given(TIMES, st.floats(0.01, 10))
def test_no_size_takes_longer_than_the_target(times: dict[int, float], target_ms: float) -> None:
    """Except the smallest, if all do; and a target makes no batch larger."""
    within, free = choose_buckets(times, target_ms).buckets, choose_buckets(times).buckets
    assert within[-1] <= free[-1]
    assert all(times[size] <= target_ms * 1e6 for size in within[1:])
