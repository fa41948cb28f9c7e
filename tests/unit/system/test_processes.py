"""Processes end, give way while models load, and write their stacks when asked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_server import wait_until
from tests.observing import state_of
from tests.patience import PROGRAM_S

from stoker.system import processes
from stoker.system.processes import LAST_STACKS_SIGNAL, STACKS_SIGNAL, stop_yielding, yield_cores

FILTER = Path("/proc/self/coredump_filter")


@pytest.mark.skipif(not FILTER.exists(), reason="this kernel writes no cores")
def test_cores_have_no_memory() -> None:
    """This holds for the process and its children, executed in any way."""
    show = f"print(open('{FILTER}').read().strip(), flush=True)"
    code = (
        "import subprocess, sys; from stoker.system.processes import keep_memory_out_of_cores; "
        f"keep_memory_out_of_cores(); {show}; "
        f"subprocess.run([sys.executable, '-c', {show!r}], start_new_session=True)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PROGRAM_S
    )
    assert answer.stdout.split() == ["00000000"] * 2


# A process of its own: nothing but Python's own threads run there.
_RUNS = """
import os, signal, sys, threading
from stoker.system.processes import STACKS_SIGNAL, write_stacks_on_signal

def deep(number): return number if number == 0 else deep(number - 1) + 1
def some(): yield from range(5)
def work():
    while True: deep(30); sum(some()); [x for x in map(lambda number: number + 1, range(20))]

write_stacks_on_signal()
sys.setswitchinterval(1e-5)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
def ask():
    for _ in range(400): os.kill(os.getpid(), STACKS_SIGNAL); asked.wait(0.001)
asked = threading.Event()
asking = threading.Thread(target=ask)
asking.start()
asking.join()
os._exit(0)
"""
_HANGS = """
import ctypes
from stoker.system.processes import write_stacks_on_signal
write_stacks_on_signal()
mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
def hang(): [libc.pthread_mutex_lock(mutex) for _ in range(2)]
print("hangs", flush=True)
hang()
"""


def test_writing_the_stacks_of_running_threads_ends_no_process() -> None:
    """Repeated requests do not either: no thread runs while its frames are read."""
    answer = subprocess.run(
        [sys.executable, "-c", _RUNS], capture_output=True, timeout=PROGRAM_S, check=False
    )
    assert answer.returncode == 0
    assert b"in work" in answer.stderr
    assert b"in join" in answer.stderr


def test_a_process_that_hangs_in_code_of_c_shows_where() -> None:
    """Python does not run there any more: the first signal is not heeded, the second one is."""
    with subprocess.Popen(
        [sys.executable, "-c", _HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as hanging:
        try:
            assert hanging.stdout is not None
            assert hanging.stderr is not None
            assert hanging.stdout.readline() == b"hangs\n"
            # Behind this line nothing sleeps but the lock that is taken twice.
            wait_until(lambda: state_of(hanging.pid) == "S", "it hangs")
            hanging.send_signal(STACKS_SIGNAL)
            hanging.send_signal(LAST_STACKS_SIGNAL)
            written = b""
            while b"in <module>" not in written:
                written += hanging.stderr.read(1)
        finally:
            hanging.kill()
    assert b"in hang" in written


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
    """A process that may not raise its priority again does not lower it."""
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
