"""The timer that ends a process in which the interpreter lock is held: when it runs, and for how long."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import PROGRAM_S

from stoker.device.lock_guard import LockGuard

_FORKS = """
import os, sys
from stoker.device.lock_guard import LockGuard
guard = LockGuard()
guard.add(0, 60_000)
guard.start()
child = os.fork()
if child == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

_HOLDS = """
import re
from stoker.device.lock_guard import LockGuard, _end_after
guard = LockGuard(arm=lambda limit_s: _end_after(limit_s / 20))
guard.add(0, 1)
guard.start()
re.match("(a+)+$", "a" * 60 + "b")
"""


class _Timer:
    """The states of a guard's timer: the seconds that it was set to, None where it was stopped."""

    def __init__(self) -> None:
        self.states: list[float | None] = []
        self.guard = LockGuard(arm=self.states.append, disarm=lambda: self.states.append(None))

    @property
    def state(self) -> float | None:
        return self.states[-1]


def test_the_timer_runs_only_while_models_serve() -> None:
    """It stands still while they are loaded and after the last one; the longest timeout counts."""
    timer = _Timer()
    timer.guard.add(0, 300)
    timer.guard.renew()
    assert timer.state is None, "it may be loaded for minutes"
    timer.guard.add(1, 60_000)
    timer.guard.start()
    assert timer.state == 67.0
    timer.guard.remove(1)
    assert timer.state == 7.3
    timer.guard.remove(0)
    assert timer.state is None
    timer.guard.stop()


def test_the_timer_stops_while_a_model_is_freed_and_at_the_end() -> None:
    """Two models may be freed at once; the timer runs again when both are gone."""
    timer = _Timer()
    timer.guard.add(0, 1000)
    timer.guard.start()
    with timer.guard.suspended():
        with timer.guard.suspended():
            timer.guard.renew()
            assert timer.state is None
        assert timer.state is None
    assert timer.state == 8.0
    timer.guard.stop()
    timer.guard.renew()
    assert timer.state is None


def test_a_process_that_a_script_forks_has_no_timer() -> None:
    """The parent's goes on; in the child nothing sets it, whatever else that does."""
    timer = _Timer()
    timer.guard.add(0, 1000)
    timer.guard.start()
    timer.guard.before_fork()
    assert timer.state is None
    timer.guard.after_fork()
    assert timer.state == 8.0
    timer.guard.before_fork()
    timer.guard.after_fork_in_child()
    timer.guard.renew()
    assert timer.state is None


def test_a_forked_process_ends_when_it_exits() -> None:
    """It would wait for a thread of its parent for ever."""
    forked = subprocess.run(
        [sys.executable, "-c", _FORKS], capture_output=True, timeout=PROGRAM_S, check=False
    )
    assert (forked.returncode, forked.stdout) == (0, b"5\n"), forked.stderr


def test_a_process_that_keeps_the_lock_ends_with_its_stacks() -> None:
    """No thread of Python runs any more then, so its exit code is the only one that C code gives."""
    process = subprocess.run(
        [sys.executable, "-c", _HOLDS], capture_output=True, timeout=PROGRAM_S, check=False
    )
    assert process.returncode == 1
    assert b"Timeout" in process.stderr
    assert b"in match" in process.stderr
