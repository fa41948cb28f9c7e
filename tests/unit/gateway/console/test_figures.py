"""The data of the console: counters of steps as counts, means and quantiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker.gateway.console.figures import figures, quantiles_ms
from stoker.metrics.history import Past, ProcessReading
from stoker.metrics.layout import STAGE_BOUNDS_S
from stoker.metrics.memory import MetricMemory

SLOT = 2
MS = 1_000_000


class Recorded:
    """A server's counters and their history; the test makes each step."""

    def __init__(self, metrics_fd: int) -> None:
        self._memory = MetricMemory(metrics_fd)
        self.past = Past(metrics_fd)
        self.frontend, self.device = (self._memory.page(page).model(SLOT) for page in (0, 64))
        self._now_ms = 0

    def step(self, *processes: ProcessReading) -> None:
        self._now_ms += 1000
        self.frontend.flush()
        self.device.flush_queued()
        self.past.record(self._now_ms, self._memory.totals().slots, (0, 0), (), processes)

    def shown(self, since: int = 0) -> dict[str, Any]:
        return figures(self.past, (SLOT,), since)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    fd = MetricMemory.create()
    yield Recorded(fd)
    os.close(fd)


def test_counts_are_of_a_step(recorded: Recorded) -> None:
    """Requests, rejections, batches and rows are counts between two steps; gauges are present values."""
    recorded.step()
    recorded.frontend.note_scored(3, MS, 9 * MS)
    recorded.frontend.count_request(503)
    recorded.frontend.count_rejection("overloaded")
    recorded.frontend.set_in_flight_rows(4)
    recorded.device.observe_batch(3, "idle", 2 * MS)
    recorded.device.count_padding(5)
    recorded.step()
    recorded.frontend.set_in_flight_rows(0)
    recorded.step()
    shown = recorded.shown()
    assert (shown["step"], shown["time_ms"], shown["span_ms"]) == (3, [2000, 3000], [1000, 1000])
    assert shown["requests"] == {"200": [1, 0], "503": [1, 0]}
    assert shown["rejections"] == {"overloaded": [1, 0]}
    assert shown["left"] == {"idle": [1, 0]}
    assert shown["rows"] == {"answered": [3, 0], "padding": [5, 0], "in_flight": [4, 0], "queued": [0, 0]}
    assert shown["batches"]["counts"][2] == [1, 0]
    assert recorded.shown(since=2)["requests"] == {}


def test_stages_are_means_of_the_answered_requests(recorded: Recorded) -> None:
    """They add up to the mean of the whole, and a step without answers has none."""
    recorded.step()
    recorded.frontend.note_scored(1, 1 * MS, 10 * MS)
    recorded.frontend.note_scored(1, 3 * MS, 20 * MS)
    recorded.device.note_queued(np.array([2 * MS, 4 * MS]))
    recorded.device.observe_batch(2, "full", 5 * MS)
    recorded.step()
    recorded.step()
    assert recorded.shown()["stages_ms"] == {
        "parse": [2.0, None], "queue": [3.0, None], "compute": [5.0, None], "answer": [5.0, None],
    }  # fmt: skip


def test_quantiles_lie_between_the_bounds_of_their_buckets() -> None:
    """Half of the times below 1 ms and half below 2.5 ms have their median at 1 ms; beyond all bounds is the last."""
    counts = np.zeros((3, len(STAGE_BOUNDS_S) + 1), np.int64)
    below_1_ms = STAGE_BOUNDS_S.index(1e-3)
    counts[0, below_1_ms] = counts[0, below_1_ms + 1] = 10
    counts[1, -1] = 1
    found = quantiles_ms(counts)
    assert found["p50"] == [1.0, 10_000.0, None]
    assert found["p90"][0] == pytest.approx(1 + 1.5 * 0.8)


def test_processes_have_their_share_of_a_core(recorded: Recorded) -> None:
    """One that has taken the place of another begins anew."""
    recorded.step(ProcessReading(0, 10, 0, 4096), ProcessReading(128, 9, 5, 1))
    recorded.step(ProcessReading(0, 10, 250, 4096), ProcessReading(128, 9, 5, 1))
    recorded.step(ProcessReading(0, 11, 10, 8192), ProcessReading(128, 9, 5, 1))
    frontend, supervisor = recorded.shown()["processes"]
    assert (frontend["name"], frontend["pid"], frontend["cpu_percent"]) == ("frontend 1", 11, [25.0, 0.0])
    assert frontend["memory_bytes"] == [4096, 8192]
    assert supervisor["name"] == "supervisor"
