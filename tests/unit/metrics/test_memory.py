"""Counters in shared memory."""

import ast
import os
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY, metric_memory

import stoker
from stoker.gpu.facts import GpuReading
from stoker.metrics.layout import (
    BATCH_BOUNDS_ROWS,
    COLLECTION_DROPS,
    FIRST_DEVICE_PAGE,
    MODEL_SLOTS,
    PAGES,
    REASONS,
    REJECTIONS,
    STAGE_BOUNDS_S,
    STAGES,
    STATUSES,
    SUPERVISOR_PAGE,
    TARGET_REASONS,
)
from stoker.metrics.memory import MetricMemory


@pytest.fixture
def memory() -> MetricMemory:
    return metric_memory()


def test_a_fresh_memory_counts_nothing(memory: MetricMemory) -> None:
    """Every total starts at zero, and every name is there."""
    totals = memory.totals()
    model = totals.model(0)
    assert model.requests() == dict.fromkeys(STATUSES, 0)
    assert model.rejections() == dict.fromkeys(REJECTIONS, 0)
    assert model.dispatches() == dict.fromkeys((*REASONS, *TARGET_REASONS), 0)
    assert (model.rows, model.rows_in_flight, model.queue_rows) == (0, 0, 0)
    assert (model.batch_rows().counts, model.batch_rows().sum) == ([0] * (len(BATCH_BOUNDS_ROWS) + 1), 0)
    assert {stage: (sum(times.counts), times.sum) for stage, times in model.stage_seconds().items()} == (
        dict.fromkeys(STAGES, (0, 0))
    )
    assert (totals.restarts(), totals.gpus()) == ({"device": 0, "frontend": 0}, [])


def test_processes_count_side_by_side_and_are_added_up() -> None:
    """Each process writes its own page of one memory; readers get the sums, per model."""
    fd = MetricMemory.create()
    first, second = MetricMemory(fd), MetricMemory(fd)
    os.close(fd)
    for memory, page, count in ((first, 0, 2), (second, 5, 3), (second, FIRST_DEVICE_PAGE, 4)):
        metrics = memory.page(page).model(7)
        for _ in range(count):
            metrics.count_request(200)
            metrics.count_rejection("overloaded")
    first.page(0).model(8).count_request(200)
    for memory in (first, second):
        totals = memory.totals()
        assert totals.model(7).requests()[200] == 9
        assert totals.model(7).rejections()["overloaded"] == 9
        assert [totals.model(slot).requests()[200] for slot in (6, 8, 9)] == [0, 1, 0]


def test_counts_survive_the_process_that_counted() -> None:
    """A successor takes the page over: counters go on, gauges start anew."""
    fd = MetricMemory.create()
    dead = MetricMemory(fd).page(3).model(0)
    dead.count_request(503)
    dead.set_in_flight_rows(17)
    dead.set_queued_rows(4)
    dead.set_batch_cap_rows(2)
    del dead
    successor = MetricMemory(fd)
    os.close(fd)
    assert successor.totals().model(0).rows_in_flight == 17
    metrics = successor.page(3).model(0)
    metrics.clear_gauges()
    metrics.count_request(503)
    totals = successor.totals().model(0)
    assert (totals.requests()[503], totals.rows_in_flight, totals.queue_rows) == (2, 0, 0)
    assert totals.batch_cap_rows == 0


def test_no_counter_touches_another(memory: MetricMemory) -> None:
    """Writing every counter of the last model, the process words and the GPUs shows each exactly once."""
    page = memory.page(SUPERVISOR_PAGE)
    metrics = page.model(MODEL_SLOTS - 1)
    for status in STATUSES:
        metrics.count_request(status or 418)
    for reason in REJECTIONS:
        metrics.count_rejection(reason)
    for reason in REASONS:
        metrics.observe_batch(5000, reason, 10**12)
    metrics.note_scored(3, 10**12, 10**12)
    metrics.note_queued(np.array([10**12]))
    metrics.flush()
    metrics.flush_queued()
    metrics.set_in_flight_rows(11)
    metrics.set_queued_rows(12)
    metrics.count_padding(17)
    metrics.set_batch_cap_rows(18)
    metrics.set_ready_replicas(13)
    metrics.count_collected(14)
    for records, reason in enumerate(COLLECTION_DROPS, 15):
        metrics.count_collection_dropped(reason, records)
    page.count_restart("device")
    page.count_restart("frontend")
    page.count_restart("frontend")
    gpus = [GpuReading(0, "GPU-first", 1, 2, 3, 4, 5, 6, 7, 8, 9), GpuReading(15, "GPU-last", power_mw=10)]
    page.set_gpus([*gpus, GpuReading(16, "GPU-one-too-many", 11)])
    totals = memory.totals()
    model = totals.model(MODEL_SLOTS - 1)
    assert model.requests() == {status: 2 if status == 200 else 1 for status in STATUSES}
    assert model.rejections() == dict.fromkeys(REJECTIONS, 1)
    assert model.dispatches() == dict.fromkeys(REASONS, 1) | dict.fromkeys(TARGET_REASONS, 0)
    assert (model.rows, model.rows_in_flight, model.queue_rows, model.ready_replicas) == (3, 11, 12, 13)
    assert (model.collected, model.collection_dropped()) == (14, {"queue_full": 15, "write_failed": 16})
    assert (model.padding_rows, model.batch_cap_rows) == (17, 18)
    assert model.batch_rows().counts == [*[0] * len(BATCH_BOUNDS_ROWS), len(REASONS)]
    for stage, times in model.stage_seconds().items():
        count = len(REASONS) if stage == "compute" else 1
        assert (times.counts, times.sum) == ([*[0] * len(STAGE_BOUNDS_S), count], 1000 * count)
    assert totals.restarts() == {"device": 1, "frontend": 2}
    assert totals.gpus() == gpus
    page.set_gpus(gpus[1:])
    assert memory.totals().gpus() == gpus[1:]
    assert sum(totals.model(MODEL_SLOTS - 2).requests().values()) == 0


def test_pages_and_slots_have_bounds(memory: MetricMemory) -> None:
    """There is no page beyond the last and no model beyond the last slot."""
    memory.page(PAGES - 1).model(MODEL_SLOTS - 1).count_request(200)
    for index in (-1, PAGES):
        with pytest.raises(ValueError, match=f"there are {PAGES} metric pages, got index {index}"):
            memory.page(index)
    for slot in (-1, MODEL_SLOTS):
        with pytest.raises(ValueError, match=f"at most {MODEL_SLOTS} models"):
            memory.page(0).model(slot)


def buckets(bounds: list[float], values: list[float]) -> list[int]:
    """Counts per bucket as Prometheus defines them: a value that equals a bound belongs below it."""
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return counts


BOUNDS_NS = [round(bound * 1e9) for bound in STAGE_BOUNDS_S]
# Values at the bounds and beside them are where buckets go wrong.
elapsed_ns = st.integers(0, 10**11) | st.sampled_from(
    [bound + shift for bound in BOUNDS_NS for shift in (-1, 0, 1)]
)


@settings(STEADY, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 300), elapsed_ns, elapsed_ns), max_size=30),
    st.lists(st.lists(elapsed_ns, min_size=1, max_size=60), max_size=40),
)
def test_stage_histograms_equal_a_reference(
    scored: list[tuple[int, int, int]], queued: list[list[int]]
) -> None:
    """Whether times come one by one or by the thousand, each lands in its bucket, and the sums are exact."""
    memory = metric_memory()
    metrics = memory.page(0).model(0)
    for rows, parse_ns, total_ns in scored:
        metrics.note_scored(rows, parse_ns, total_ns)
    metrics.flush()
    metrics.flush()
    for times in queued:
        metrics.note_queued(np.array(times))
    metrics.flush_queued()
    assert not metrics.notes
    model = memory.totals().model(0)
    assert model.requests()[200] == len(scored)
    assert model.rows == sum(rows for rows, _, _ in scored)
    stages = model.stage_seconds()
    for stage, values in (
        ("parse", [parse_ns for _, parse_ns, _ in scored]),
        ("total", [total_ns for _, _, total_ns in scored]),
        ("queue", [value for times in queued for value in times]),
    ):
        assert stages[stage].counts == buckets(BOUNDS_NS, values)
        # Less than a microsecond is counted with the next time.
        assert 0 <= sum(values) / 1e9 - stages[stage].sum < 1e-6 + 1e-9


@settings(STEADY, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 5000), st.sampled_from(REASONS), elapsed_ns), max_size=30))
def test_batch_histograms_equal_a_reference(batches: list[tuple[int, str, int]]) -> None:
    """Sizes, reasons and compute times of batches are counted as they are."""
    memory = metric_memory()
    metrics = memory.page(FIRST_DEVICE_PAGE).model(2)
    for rows, reason, compute_ns in batches:
        metrics.observe_batch(rows, reason, compute_ns)
    model = memory.totals().model(2)
    sizes = [rows for rows, _, _ in batches]
    assert model.batch_rows().counts == buckets(list(BATCH_BOUNDS_ROWS), sizes)
    assert model.batch_rows().sum == sum(sizes)
    reasons = [reason for _, reason, _ in batches]
    assert model.dispatches() == {reason: reasons.count(reason) for reason in (*REASONS, *TARGET_REASONS)}
    compute = model.stage_seconds()["compute"]
    assert compute.counts == buckets(BOUNDS_NS, [compute_ns for _, _, compute_ns in batches])


def test_a_full_arena_that_waits_for_years_is_counted(memory: MetricMemory) -> None:
    """32,768 rows that always wait add up to as many seconds each second; neither that nor its sum overflows."""
    year_s, rows = 365 * 86_400, 32_768
    metrics = memory.page(FIRST_DEVICE_PAGE).model(0)
    metrics.note_queued(np.full(rows, year_s * 10**9 // 128))
    for _ in range(127):
        metrics.note_queued(np.full(rows, year_s * 10**9 // 128))
    for _ in range(5):
        metrics.observe_batch(rows, "full", year_s * 10**9)
    metrics.flush_queued()
    model = memory.totals().model(0)
    assert model.stage_seconds()["queue"].sum == pytest.approx(rows * year_s)
    assert model.stage_ns()["queue"] == (128 * rows, rows * year_s * 10**9)
    assert model.stage_seconds()["compute"].sum == 5 * year_s


def test_a_process_shows_that_it_lives(memory: MetricMemory) -> None:
    """Its successor goes on from there, and other processes have beats of their own."""
    page = memory.page(3)
    before = page.beats
    page.beat()
    page.beat()
    successor = memory.page(3)
    successor.beat()
    assert (page.beats - before, memory.page(4).beats) == (3, 0)


def test_notes_are_counted_by_the_next_flush(memory: MetricMemory) -> None:
    """Noted times are counted at the next flush; notes of many rows are counted at once."""
    metrics = memory.page(0).model(0)
    metrics.note_scored(5, 1, 2)
    metrics.note_queued(np.arange(10))
    totals = memory.totals().model(0)
    assert (totals.requests()[200], totals.rows, totals.stage_ns()["total"][0]) == (1, 5, 0)
    assert metrics.notes
    metrics.note_queued(np.arange(5000))
    assert not metrics.notes
    assert sum(memory.totals().model(0).stage_seconds()["queue"].counts) == 5010
    metrics.flush()
    totals = memory.totals().model(0)
    assert (totals.rows, totals.stage_ns()["total"][0]) == (5, 1)


def test_an_unlisted_status_counts_as_other(memory: MetricMemory) -> None:
    """Statuses that nobody thought of are counted together, under 0."""
    metrics = memory.page(0).model(0)
    for status in (418, 507, 200):
        metrics.count_request(status)
    requests = memory.totals().model(0).requests()
    assert (requests[0], requests[200], sum(requests.values())) == (2, 1, 3)


def test_stage_bounds_and_batch_bounds_grow() -> None:
    """Buckets are in ascending order, and each batch size up to the default limit has one of its own kind."""
    assert list(STAGE_BOUNDS_S) == sorted(set(STAGE_BOUNDS_S))
    assert list(BATCH_BOUNDS_ROWS) == sorted(set(BATCH_BOUNDS_ROWS))
    assert 256 in BATCH_BOUNDS_ROWS


def test_unused_pages_take_no_memory() -> None:
    """Adding up, and clearing a slot, touches the pages of the processes that there are; a later one counts too."""
    fd = MetricMemory.create()
    try:
        memory, other = MetricMemory(fd), MetricMemory(fd)
        memory.page(5).model(3).count_request(200)
        other.totals()
        other.clear_model(2)
        assert os.fstat(fd).st_blocks * 512 < os.fstat(fd).st_size / PAGES * 4
        memory.page(PAGES - 1).model(3).count_request(200)
        assert other.totals().model(3).requests()[200] == 2
    finally:
        os.close(fd)


WRITER = """
import mmap, sys
import numpy as np
from stoker.metrics.layout import PAGES
from stoker.metrics.table import MEMORY_BYTES, PAGES_BYTES
words = np.frombuffer(mmap.mmap(int(sys.argv[1]), MEMORY_BYTES), np.int64)
taken, page = words[PAGES_BYTES // 8 :][:PAGES], words[:4096]
print("writes", flush=True)
while True:
    taken[:], page[:] = 1, 0
    taken[:], page[:] = 0, 1
"""


@pytest.fixture
def written_memory() -> Iterator[MetricMemory]:
    """A memory in which another process writes without pause."""
    fd = MetricMemory.create()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writes\n"
        yield MetricMemory(fd)
    finally:
        writer.kill()
        writer.communicate()
        os.close(fd)


def test_processes_may_start_while_the_counters_are_read(written_memory: MetricMemory) -> None:
    """Readers get figures and no error while other processes write."""
    usage = written_memory.caller_usage()
    for _ in range(300):
        written_memory.totals()
        written_memory.model_totals(0)
        written_memory.capacities_rows_s()
        written_memory.capacities_rows_s(0)
        written_memory.batch_times(0)
        written_memory.busy_s()
        usage.include_new_processes()
        usage.all_rows()


COUNTS_FIRST = {"nonzero", "flatnonzero", "argwhere", "unique", "where", "compress"}
"""Functions of numpy that count first, and raise an error if there is more to find a moment later."""


def kept_arrays_that_are_counted(source: str) -> list[int]:
    """The lines that call one of these functions on what an object keeps, as it is: others may write there."""
    lines: list[int] = []
    if not any(name in source for name in COUNTS_FIRST):
        return lines
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr not in COUNTS_FIRST or (node.func.attr == "where" and len(node.args) > 1):
            continue
        of_numpy = isinstance(node.func.value, ast.Name) and node.func.value.id == "np"
        array = node.args[0] if of_numpy else node.func.value
        while isinstance(array, ast.Subscript):
            array = array.value
        if isinstance(array, ast.Attribute):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "counted", ["np.flatnonzero(self._a)", "self._a[2:].nonzero()", "np.where(x.a[:, 1])"]
)
def test_a_kept_array_that_is_counted_is_found(counted: str) -> None:
    """Once it is copied or compared it is nobody else's."""
    assert kept_arrays_that_are_counted(counted) == [1]
    assert kept_arrays_that_are_counted("np.flatnonzero(self._a.copy()), np.flatnonzero(x.a > 0)") == []


def test_no_array_that_others_may_write_is_counted() -> None:
    """Arrays that objects keep may be shared memory: they are copied or compared before numpy counts in them."""
    found = {
        file.name: lines
        for file in Path(stoker.__file__).parent.rglob("*.py")
        if (lines := kept_arrays_that_are_counted(file.read_text(encoding="utf-8")))
    }
    assert found == {}
