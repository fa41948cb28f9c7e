"""The last minutes' counters in shared memory: a write each second, and reads by steps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from stoker.gpu.facts import GpuReading
from stoker.metrics.history import PAST_END, RINGS, Past, ProcessReading
from stoker.metrics.layout import MODEL_SLOTS
from stoker.metrics.memory import MetricMemory
from stoker.metrics.table import MEMORY_BYTES, ROWS_IN_FLIGHT, SLOT_WORDS

SLOT = 5


@pytest.fixture
def metrics_fd() -> Iterator[int]:
    fd = MetricMemory.create()
    yield fd
    os.close(fd)


def counters(requests: int = 0, in_flight: int = 0) -> np.ndarray:
    """The counters of a server with one model."""
    words = np.zeros((MODEL_SLOTS, SLOT_WORDS), np.int64)
    words[SLOT, 0], words[SLOT, ROWS_IN_FLIGHT.offset] = requests, in_flight
    return words


def record(past: Past, step: int, requests: int = 0) -> None:
    past.record(1000 * step, counters(requests), (0, 0), (), ())


def test_recorded_history_is_read_by_other_processes(metrics_fd: int) -> None:
    """Counters, restarts, GPUs and processes are read back, with slots added up."""
    writer, reader = Past(metrics_fd), Past(metrics_fd)
    words = counters(7, 3)
    words[SLOT + 1, 0] = 5
    gpu = GpuReading(1, "GPU-1", memory_used_bytes=10, utilization_percent=55)
    writer.record(1000, words, (2, 1), (gpu,), (ProcessReading(64, 4242, 30, 4096),))
    steps = reader.read((SLOT, SLOT + 1))
    assert (steps.last, steps.time_ms.tolist(), steps.restarts.tolist()) == (1, [1000], [[2, 1]])
    assert (steps.slots[0, 0], steps.slots[0, ROWS_IN_FLIGHT.offset]) == (12, 3)
    assert {page: words.tolist() for page, words in steps.processes().items()} == {64: [[4242, 30, 4096]]}
    assert steps.gpus()[1]["utilization_percent"] == [55]
    assert steps.gpus()[1]["power_mw"] == [None]


def test_before_the_first_step_there_is_none(metrics_fd: int) -> None:
    """Reading then gives empty columns."""
    steps = Past(metrics_fd).read((SLOT,))
    assert (steps.last, len(steps.time_ms), len(steps.slots), steps.processes(), steps.gpus()) == (
        0,
        0,
        0,
        {},
        {},
    )


@pytest.mark.parametrize(
    ("since", "times"), [(0, [1, 2, 3]), (1, [1, 2, 3]), (2, [2, 3]), (3, [3]), (9, [3])]
)
def test_reading_goes_on_where_it_ended(metrics_fd: int, since: int, times: list[int]) -> None:
    """The step that was read last comes again, for the differences begin at it."""
    past = Past(metrics_fd)
    for step in (1, 2, 3):
        record(past, step)
    assert (past.read((SLOT,), since).time_ms / 1000).tolist() == times


@pytest.mark.parametrize("step_s", RINGS)
def test_the_oldest_steps_are_forgotten(metrics_fd: int, step_s: int) -> None:
    """Fifteen minutes of seconds can be read, and six hours of longer steps, however long the server has run."""
    past, steps = Past(metrics_fd), RINGS[step_s]
    for second in range(1, step_s * (steps + 199) + 1):
        record(past, second, requests=second)
    found = past.read((SLOT,), step_s=step_s)
    times = [1 + step_s * number for number in range(198, steps + 199)]
    assert (found.time_ms / 1000).tolist() == times
    assert found.slots[:, 0].tolist() == times


def test_long_steps_have_numbers_of_their_own(metrics_fd: int) -> None:
    """A page with one asks for later steps, of any length."""
    past = Past(metrics_fd)
    for second in range(1, 62):
        record(past, second, requests=second)
    assert past.read((SLOT,), step_s=20).last == 4
    assert (past.read((SLOT,), 3, step_s=20).time_ms / 1000).tolist() == [41, 61]


def test_the_memory_is_bounded() -> None:
    """Both rings take at most 140 MB with all slots used, as the documentation says."""
    assert PAST_END - MEMORY_BYTES < 140_000_000


def test_a_version_that_gets_the_slot_of_another_has_no_past(metrics_fd: int) -> None:
    """Counts of the former version are not shown as its own."""
    past = Past(metrics_fd)
    record(past, 1, requests=100)
    record(past, 2, requests=2)
    assert past.read((SLOT,)).slots[:, 0].tolist() == [0, 2]
    assert past.read((SLOT,), step_s=20).slots[:, 0].tolist() == [0]


def test_ended_process_is_not_in_the_history(metrics_fd: int) -> None:
    """A process or GPU that is missing from the last step is not shown."""
    past = Past(metrics_fd)
    gpu = GpuReading(0, "GPU-0", utilization_percent=1)
    past.record(1000, counters(), (0, 0), (gpu,), (ProcessReading(0, 1, 1, 1), ProcessReading(1, 2, 1, 1)))
    past.record(2000, counters(), (0, 0), (), (ProcessReading(1, 2, 1, 1),))
    steps = past.read(())
    assert (list(steps.processes()), steps.gpus()) == ([1], {})
