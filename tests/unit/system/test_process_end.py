"""What a process leaves behind when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_server import wait_until
from tests.patience import PROGRAM_S

from stoker.system.processes import LAST_STACKS_SIGNAL, STACKS_SIGNAL

FILTER = Path("/proc/self/coredump_filter")


@pytest.mark.skipif(not FILTER.exists(), reason="this kernel writes no cores")
def test_cores_have_no_memory() -> None:
    """Neither those of the process nor those of what it starts, however that is executed."""
    show = f"print(open('{FILTER}').read().strip(), flush=True)"
    code = (
        "import subprocess, sys; from stoker.system.processes import keep_memory_out_of_cores; "
        f"keep_memory_out_of_cores(); {show}; "
        f"subprocess.run([sys.executable, '-c', {show!r}], start_new_session=True)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PROGRAM_S
    )
    assert told.stdout.split() == ["00000000"] * 2


# What is asked is asked by itself: nothing but Python's own threads run here.
_RUNS = """
import os, signal, sys, threading
from stoker.system.processes import STACKS_SIGNAL, write_stacks_when_asked

def deep(number): return number if number == 0 else deep(number - 1) + 1
def some(): yield from range(5)
def work():
    while True: deep(30); sum(some()); [x for x in map(lambda number: number + 1, range(20))]

write_stacks_when_asked()
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
from stoker.system.processes import write_stacks_when_asked
write_stacks_when_asked()
mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
def hang(): [libc.pthread_mutex_lock(mutex) for _ in range(2)]
print("hangs", flush=True)
hang()
"""


def test_writing_the_stacks_of_running_threads_ends_no_process() -> None:
    """However often it is asked to: nobody runs while their frames are read."""
    asked = subprocess.run([sys.executable, "-c", _RUNS], capture_output=True, timeout=PROGRAM_S, check=False)
    assert asked.returncode == 0
    assert b"in work" in asked.stderr
    assert b"in join" in asked.stderr


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
            state = Path(f"/proc/{hanging.pid}/stat")
            wait_until(lambda: state.read_text().rpartition(") ")[2][0] == "S", "it hangs")
            hanging.send_signal(STACKS_SIGNAL)
            hanging.send_signal(LAST_STACKS_SIGNAL)
            written = b""
            while b"in <module>" not in written:
                written += hanging.stderr.read(1)
        finally:
            hanging.kill()
    assert b"in hang" in written
