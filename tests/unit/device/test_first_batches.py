"""Batches that are timed before a model serves."""

import pytest
from msgspec.structs import replace
from tests.pipelined_puppets import PuppetPipeline
from tests.puppets import BODIES, HandClock, PuppetRuntime

from stoker.device.batch_sizes import BatchSizes
from stoker.device.first_batches import first_times, time_batches
from stoker.device.loaded_model import LoadedModel
from stoker.runtimes.base import OutOfMemory


def loaded(runtime: PuppetRuntime, **changes: object) -> LoadedModel:
    """A model of up to eight rows."""
    return replace(LoadedModel(runtime, 0, 0, 8, BatchSizes(), 1, None), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sizes", "timed"), [(BatchSizes(), [1, 2, 4, 8]), (BatchSizes((3, 8, 16)), [3, 8])])
def test_each_size_is_timed_twice(sizes: BatchSizes, timed: list[int]) -> None:
    """Once it is warm: the first run of a size may prepare things."""
    clock, runtime = HandClock(), PuppetRuntime()
    runtime.during = lambda: clock.advance_ms(len(runtime.batches[-1]))
    times = first_times(loaded(runtime, sizes=sizes), clock)
    assert times == [(rows, rows * 1_000_000) for rows in timed for _ in range(2)]


def test_batches_in_flight_are_timed_without_their_copies() -> None:
    """Arenas are detached even after an error. Sizes that cannot be in flight are run."""
    runtime = PuppetPipeline()
    runtime.sizes = (1, 4)
    runtime.takes_ns = lambda size: size * 1000
    runtime.copies_ns = lambda _: 10**9
    assert time_batches(runtime, 4, None, 3) == [4000] * 3
    assert runtime.begun == [4] * 3
    assert not runtime.attached
    assert not runtime.batches
    assert len(time_batches(runtime, 2, None, 3)) == 3
    assert len(runtime.batches) == 3
    runtime.fits_rows = 1
    with pytest.raises(OutOfMemory):
        time_batches(runtime, 4, None, 3)
    assert not runtime.attached
    assert not runtime.flights


def test_a_size_that_fails_is_left_out() -> None:
    """The model is served all the same, in smaller batches."""
    runtime = PuppetRuntime()
    runtime.fits_rows = 4
    assert {rows for rows, _ in first_times(loaded(runtime))} == {1, 2, 4}


def test_scripts_are_not_timed() -> None:
    """Their `run` may have side effects."""
    runtime = PuppetRuntime(BODIES)
    assert first_times(loaded(runtime)) == []
    assert not runtime.batches
