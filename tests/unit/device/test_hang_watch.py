"""Runs that do not return end the process, when their callers have long been told."""

from __future__ import annotations

import threading

import pytest
from tests.patience import PATIENCE_S
from tests.puppets import HandClock, Joined

from stoker.device.hang_watch import HangWatch
from stoker.system.processes import GRACE_MS, ExitCode


def test_only_a_run_beyond_timeout_and_grace_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """Up to then the device may still answer; a process ends once, however many runs hang."""
    clock, ends = HandClock(), list[ExitCode]()
    began = [0, 0, 0]
    watch = HangWatch("digits", 1000, lambda: began, clock_ns=clock, end_process=ends.append)
    clock.advance_ms(1e9)
    watch.check()
    began[1] = began[2] = clock()
    clock.advance_ms(1000 + GRACE_MS)
    watch.check()
    assert ends == []
    clock.advance_ms(1)
    watch.check()
    assert ends == [ExitCode.STUCK]
    assert "digits: a run has not returned within 6000 ms" in caplog.text


def test_an_instance_says_since_when_it_runs() -> None:
    """While the model runs, and not before or after, whether it has failed or not."""
    with Joined() as joined:
        (instance,) = joined.worker.instances
        seen = []
        joined.runtime.during = lambda: seen.append(instance.run_began_ns)
        joined.runtime.fails_for = {2}
        assert instance.run_began_ns == 0
        for number in (1, 2):
            joined.clock.advance_ms(5)
            joined.submit(number)
            joined.settle()
            assert seen == [joined.clock()]
            assert instance.run_began_ns == 0
            seen.clear()


def test_a_packed_instance_says_so_in_shared_memory() -> None:
    """The supervisor reads it after a crash; a process that takes over the page begins without it."""
    with Joined(packed=True) as joined:
        metrics = joined.memory.page(64).model(0)
        seen: list[int] = []
        joined.runtime.during = lambda: seen.append(metrics.run_began[0])
        joined.submit(1)
        joined.settle()
        assert (seen, metrics.run_began[0]) == ([joined.clock()], 0)
    metrics.run_began[0] = 7
    metrics.clear_gauges()
    assert metrics.run_began[0] == 0


def test_a_watch_that_is_stopped_looks_no_more() -> None:
    """Its thread ends with the model that is unloaded."""
    watch = HangWatch("digits", 1000, list)
    watch.start()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "hang watch of digits")
    watch.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
