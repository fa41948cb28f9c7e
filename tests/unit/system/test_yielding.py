"""Loading behind everything else that wants the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.system import processes
from stoker.system.processes import stop_yielding, yield_cores


@pytest.fixture
def child() -> Iterator[int]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the niceness of the session of this process; it changes nothing."""
    for name in (str(os.getpid()), "self"):
        (tmp_path / name).mkdir()
    (tmp_path / "self" / "task").symlink_to("/proc/self/task")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    return tmp_path / str(os.getpid()) / "autogroup"


def test_a_process_yields_if_it_may_return(child: int, session: Path) -> None:
    """Who is not allowed to become important again does not become nicer."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    niceness = yield_cores(child)
    assert niceness in (before, None)
    # Nobody is nicer than 19.
    assert os.getpriority(os.PRIO_PROCESS, child) == min(19, before + (0 if niceness is None else 10))
    assert not session.exists(), "its own session is another one"


def test_all_threads_of_a_process_return(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were started while it yielded have inherited its niceness, and lose it with the rest."""
    priorities = {os.getpid(): 17}
    done = threading.Event()
    pool = threading.Thread(target=done.wait)
    pool.start()
    assert pool.native_id is not None
    priorities[pool.native_id] = 17
    monkeypatch.setattr(os, "getpriority", lambda _, task: priorities.get(task, 3))
    monkeypatch.setattr(os, "setpriority", lambda _, task, nice: priorities.__setitem__(task, nice))
    try:
        stop_yielding(7)
    finally:
        done.set()
        pool.join()
    assert priorities == {os.getpid(): 7, pool.native_id: 7}
    assert session.read_text() == "0"


def test_a_process_that_did_not_yield_is_left_alone(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its session returns, which needs no privilege."""
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("nothing to return to"))
    stop_yielding(None)
    assert session.read_text() == "0"
