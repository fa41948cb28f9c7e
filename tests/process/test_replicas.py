"""Replicas: several device processes that serve one model, and the cost of one's death."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.live_server import LiveServer, wait_until
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve
from tests.tiny_models import write_script

# A row that starts with -1 is answered by the number of the process.
SCRIPT = """
import os
import stoker

def init(): ...

@stoker.batched(shape=(4,))
def run(data):
    answer = data * 2
    answer[data[:, 0] == -1] = os.getpid()
    return answer
"""
CALLERS = 16


@contextmanager
def _two_cores() -> Iterator[None]:
    """Start processes that may use two cores, whatever the machine has."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("needs two cores")
    os.sched_setaffinity(0, sorted(cores)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _answering(server: LiveServer) -> set[int]:
    """Return the processes that answer a few requests, sent one after the other."""
    return {server.score([-1, 0, 0, 0]).json()[0][0] for _ in range(4)}


def test_a_replica_that_is_killed_under_load_costs_its_own_rows(serve: Serve, tmp_path: Path) -> None:
    """Of three, two cores allow two; one is killed: the service stays ready, and the replica comes back."""
    with _two_cores():
        script = write_script(tmp_path / "doubler", SCRIPT)
        server = serve(script, "--replicas", "3", "--device", "cpu", "--frontends", "1")
    assert (
        "3 replicas were asked for, 2 run: on the CPU there is at most one for each core" in server.output()
    )
    assert "2 replicas: 2 on cpu" in server.output()
    killed, survivor = server.device_pids()
    assert _answering(server) == {killed, survivor}

    with Callers(server.port, scored(server.key), kept_alive=CALLERS) as callers:
        wait_until(lambda: callers.answered(300), "the load runs")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: server.metric("stoker_ready_replicas", model="doubler") == 1, "one is left")
        assert server.ready
        assert server.score([1, 2, 3, 4]).json() == [[2, 4, 6, 8]]
        wait_until(lambda: server.metric("stoker_ready_replicas", model="doubler") == 2, "it is back")
        back_s = time.monotonic()
        wait_until(lambda: callers.answered(300, after_s=back_s), "the load goes on")
        outcomes = callers.stop()

    failed = [outcome for outcome in outcomes if not outcome.right]
    assert len(failed) <= CALLERS, "each caller had one request in flight; the survivor takes the later ones"
    for outcome in failed:
        assert outcome.answer is not None
        assert (outcome.status, outcome.answer.error_code()) == (503, "device_lost")
    successor = (set(server.device_pids()) - {survivor}).pop()
    wait_until(lambda: _answering(server) == {survivor, successor}, "both answer")
    assert "the device process of doubler (replica " in server.output()
    assert server.metric("stoker_process_restarts_total", process="device") == 1
