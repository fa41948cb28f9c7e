"""The history that the supervisor records for the console."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.metrics.history import Past, ProcessReading
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.supervisor.recorder import Recorder, read_processes


@pytest.mark.anyio
async def test_a_look_is_a_step() -> None:
    """It has the counters of that moment, and the processes: this one among them, but none that has ended."""
    metrics_fd = MetricMemory.create()
    recorder = Recorder(metrics_fd, lambda: {0: 1 << 30}, clock_s=lambda: 12.5)
    MetricMemory(metrics_fd).page(0).model(0).count_request(404)
    assert await recorder.record()
    steps = Past(metrics_fd).read((0,))
    os.close(metrics_fd)
    assert (steps.last, steps.time_ms.tolist(), steps.slots.sum()) == (1, [12_500], 1)
    (page,) = steps.processes()
    assert (page, steps.processes()[page][0, 0]) == (SUPERVISOR_PAGE, os.getpid())


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    """Parentheses and spaces of it are not taken for the fields behind it."""
    (tmp_path / "7").mkdir()
    fields = ["S", *["0"] * 10, "150", "50", *["0"] * 8, "3", *["0"] * 10]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {' '.join(fields)}\n")
    tick_ms, page_bytes = 1000 // os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert list(read_processes({1: 7, 2: 8}, tmp_path)) == [
        ProcessReading(1, 7, 200 * tick_ms, 3 * page_bytes)
    ]
