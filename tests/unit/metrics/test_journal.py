"""Remarkable requests in shared memory: one frontend writes them, all can read."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from stoker.errors import Overloaded
from stoker.gateway.console.figures import remarkable_requests
from stoker.metrics.counters import BatchFacts
from stoker.metrics.history import Past
from stoker.metrics.journal import RECORD_BYTES, Journal, Remarks, Ring, ring_bytes
from stoker.metrics.memory import MetricMemory

MS = 1_000_000


class Clock:
    """Milliseconds that stand until they are moved."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def metrics_fd() -> Iterator[int]:
    fd = MetricMemory.create()
    yield fd
    os.close(fd)


def call(number: int, total_ms: int = 0) -> Any:
    """A request whose stages take a quarter of its time each."""
    quarter_ns = total_ms * MS // 4
    return SimpleNamespace(
        key_name="nightly",
        stages_ns=dict.fromkeys(("parse", "queue", "compute"), quarter_ns),
        stages_until=lambda now_ns: {"total": now_ns, "parse": now_ns},
        rows=2,
        batch=BatchFacts(rows=8, padding_rows=0, requests=3, left="full") if number % 2 else None,
        ids=SimpleNamespace(request_id=b"id-%d" % number),
    )


def ids(journal: Journal, kind: Any = "slow") -> list[str]:
    return [orjson.loads(record)["id"] for record in journal.read(kind)]


def remark(remarks: Remarks, number: int, total_ms: int) -> None:
    """As a call does."""
    if total_ms * MS > remarks.slow_ns:
        remarks.slow(call(number, total_ms), total_ms * MS)


def test_every_frontend_reads_entries_of_others(metrics_fd: int) -> None:
    """A successor goes on after its predecessor's entries, and the oldest records go."""
    first, other = Journal(metrics_fd, 0), Journal(metrics_fd, 7)
    other.write("failed", b"of another")
    for number in range(100):
        first.write("slow", b"%d" % number)
    successor = Journal(metrics_fd, 0)
    for number in range(100, 200):
        successor.write("slow", b"%d" % number)
    assert sorted(map(int, other.read("slow"))) == list(range(72, 200))
    assert first.read("failed") == [b"of another"]


def test_only_the_slowest_are_remarked(metrics_fd: int) -> None:
    """Once there are sixteen of half a minute, it takes more time than the quickest of them; then it begins anew."""
    clock = Clock()
    journal = Journal(metrics_fd, 0)
    remarks = Remarks(journal, "digits", "3", clock)
    for number in range(16):
        remark(remarks, number, total_ms=10 + number)
    remark(remarks, 100, total_ms=9)
    remark(remarks, 101, total_ms=20)
    remark(remarks, 102, total_ms=10)
    assert ids(journal) == [*(f"id-{number}" for number in range(15)), "id-15", "id-101"]
    clock.now_ms += 30_000
    remarks.begin_anew()
    remark(remarks, 103, total_ms=1)
    assert ids(journal)[-1] == "id-103"


def test_a_flood_of_failures_is_sampled(metrics_fd: int) -> None:
    """Ten a second are kept, with the ids that the log has."""
    clock = Clock()
    journal = Journal(metrics_fd, 0)
    remarks = Remarks(journal, "digits", "3", clock)
    for number in range(25):
        remarks.failed(call(number), Overloaded("No row is free."), 3 * MS)
    clock.now_ms += 1000
    remarks.failed(call(99), Overloaded("\ud800" + "x" * 10_000), 3 * MS)
    assert ids(journal, "failed") == [*(f"id-{number}" for number in range(10)), "id-99"]
    record = orjson.loads(journal.read("failed")[0])
    assert (record["model"], record["version"], record["status"]) == ("digits", "3", 503)
    assert (record["code"], record["message"], record["error_id"]) == ("overloaded", "No row is free.", None)
    assert (record["key"], record["total_ms"], record["parse_ms"]) == ("nightly", 3, 3)


def test_a_long_message_is_shortened_until_it_fits(metrics_fd: int) -> None:
    """A failure with a long id, long names and signs of three bytes is recorded all the same."""
    journal = Journal(metrics_fd, 0)
    long = call(1)
    long.ids.request_id = b"i" * 100
    Remarks(journal, "m" * 60, "3", Clock()).failed(long, Overloaded("\u2713" * 500), 3 * MS)
    (record,) = (orjson.loads(written) for written in journal.read("failed"))
    assert record["message"].endswith("\u2026")
    assert len(journal.read("failed")[0]) <= RECORD_BYTES


def test_a_slow_request_is_explained(metrics_fd: int) -> None:
    """By its stages, and by what its model did in that second; the slowest comes first."""
    memory, past, journal = MetricMemory(metrics_fd), Past(metrics_fd), Journal(metrics_fd, 0)
    frontend, device = memory.page(0).model(4), memory.page(64).model(4)
    clock = Clock()
    past.record(clock.now_ms - 500, memory.totals().slots, (0, 0), (), ())
    frontend.count_scored(3, 12)
    device.observe_batch(12, "full", 5 * MS)
    device.set_queued_rows(9)
    past.record(clock.now_ms + 500, memory.totals().slots, (0, 0), (), ())
    remarks = Remarks(journal, "digits", "3", clock)
    remark(remarks, 1, total_ms=40)
    clock.now_ms += 60_000
    remark(remarks, 2, total_ms=80)
    later, explained = remarkable_requests(journal, past, {("digits", "3"): 4})["slow"]
    assert (later["id"], later["around"]) == ("id-2", None)
    assert (explained["total_ms"], explained["queue_ms"], explained["rows"]) == (40, 10, 2)
    around = explained["around"]
    assert (around["requests"], around["batches"], around["rows_a_batch"]) == (3, 1, 12.0)
    assert (around["left"], around["queued_rows"]) == ({"full": 1}, 9)


def test_a_slow_request_tells_its_batch_where_that_is_known(metrics_fd: int) -> None:
    """The entry is as the page shows it; without a known batch it has none."""
    journal = Journal(metrics_fd, 0)
    remarks = Remarks(journal, "digits", "1", Clock())
    for number in (1, 2):
        remark(remarks, number, 10)
    slow = {record["id"]: record for record in remarkable_requests(journal, Past(metrics_fd), {})["slow"]}
    assert slow["id-1"]["batch"] == {"rows": 8, "padding_rows": 0, "requests": 3, "left": "full"}
    assert "batch" not in slow["id-2"]


def ring(records: int = 8) -> Ring:
    """An empty one behind something else."""
    return Ring(mmap.mmap(-1, 512 + ring_bytes(records)), 512, records)


def write(ring: Ring, first: int, last: int) -> None:
    """Write records that say their number."""
    for number in range(first, last + 1):
        ring.write(number, b"%d" % number)


def test_records_are_read_once_and_in_order() -> None:
    """Around the end of the ring too; then there are none until more are written."""
    one = ring()
    assert one.since(0) == ([], 0)
    write(one, 1, 5)
    assert one.since(0) == ([b"1", b"2", b"3", b"4", b"5"], 5)
    assert one.since(5) == ([], 5)
    write(one, 6, 11)
    assert one.since(5) == ([b"6", b"7", b"8", b"9", b"10", b"11"], 11)
    assert one.newest == 11


def test_slow_reader_continues_half_a_ring_behind() -> None:
    """A reader that was overtaken goes on half a ring behind the writer, and can count the gap."""
    one = ring()
    write(one, 1, 20)
    assert one.since(3) == ([b"16", b"17", b"18", b"19", b"20"], 20)
    assert one.newest == 20


def test_the_longest_record_fits() -> None:
    """It ends where the next one begins."""
    one = ring()
    one.write(1, b"a" * RECORD_BYTES)
    one.write(2, b"b")
    assert one.since(0) == ([b"a" * RECORD_BYTES, b"b"], 2)


def test_a_record_that_is_being_written_is_left_out() -> None:
    """It has no number until it is whole, though another one had one there before."""
    memory = mmap.mmap(-1, ring_bytes(8))
    one = Ring(memory, 0, 8)
    write(one, 1, 9)
    memory[512:520] = bytes(8)
    assert one.since(7) == ([b"8"], 8)
