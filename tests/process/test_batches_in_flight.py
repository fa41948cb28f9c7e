"""A server whose device computes one batch while the next one is copied: a puppet in a real device process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.live_server import LiveServer, wait_until
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve

ROOT = Path(__file__).parents[2]

PUPPET = """
import sys

if "stoker.device.process" in sys.orig_argv:
    import time

    from stoker.device import loading
    from tests.pipelined_puppets import PuppetPipeline

    load = loading.load_runtime

    def load_runtime(*arguments):
        runtime = load(*arguments)
        pipeline = PuppetPipeline(runtime.signature, runtime.run)
        pipeline.clock = time.monotonic_ns
        pipeline.takes_ns = lambda size: 2_000_000 + 20_000 * size
        pipeline.copies_ns = lambda rows: 300_000
        return pipeline

    loading.load_runtime = load_runtime
"""
"""Imported by each process of the server at its start."""


@pytest.fixture
def server(serve: Serve, doubler: Path, tmp_path: Path) -> LiveServer:
    """A server with two frontends, whose model has two batches in flight."""
    folder = tmp_path / "puppet"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PUPPET, encoding="utf-8")
    return serve(doubler, "--frontends", "2", env={"PYTHONPATH": f"{folder}:{ROOT}"})


def test_batches_in_flight_outlive_a_frontend_and_a_drain(server: LiveServer) -> None:
    """Callers get their own answers, a killed frontend takes nobody else's along, and the drain loses nothing.

    Times are those of the computation alone.
    """
    (device,) = server.device_pids()
    with Callers(server.port, scored(server.key), kept_alive=24) as callers:
        wait_until(lambda: callers.answered(1500), "the load runs")
        os.kill(server.frontend_pids()[0], signal.SIGKILL)
        killed_s = time.monotonic()
        wait_until(lambda: callers.answered(1500, after_s=killed_s), "the load runs on")
        outcomes = callers.stop()
    assert all(outcome.right for outcome in outcomes if outcome.status)
    assert server.device_pids() == [device]

    def times_are_those_of_batches() -> bool:
        batches = server.metric("stoker_batch_rows_count", model="doubler")
        rows = server.metric("stoker_batch_rows_sum", model="doubler")
        computed_s = server.metric("stoker_stage_seconds_sum", model="doubler", stage="compute")
        return computed_s == pytest.approx(0.002 * batches + 0.000_02 * rows, rel=0.001)

    wait_until(times_are_those_of_batches, "all batches are counted, which is when their answers have left")
    with Callers(server.port, scored(server.key), kept_alive=24) as callers:
        wait_until(lambda: callers.answered(500), "the load runs")
        server.signal(signal.SIGTERM)
        outcomes = callers.join()
    assert server.wait() == 0
    assert all(outcome.right for outcome in outcomes)
