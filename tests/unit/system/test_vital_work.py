"""Threads without which a process cannot serve: one that dies is noticed, whenever that is."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest
from tests.patience import PATIENCE_S, PROGRAM_S

from stoker.system import vital_work
from stoker.system.processes import ExitCode
from stoker.system.vital_work import start_thread

STARTS = """
import resource, threading
from pathlib import Path
from stoker.system.vital_work import start_thread

ended = threading.Event()
for beyond_stack_kib in range(-64, 128, 4):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (8192 + beyond_stack_kib) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        start_thread(ended.wait, "waits")
    except MemoryError:
        pass
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
start_thread(ended.set, "ends")
assert ended.wait(30.0)
"""
"""With a stack of 8 MiB, `Thread.start` never returns at some of these limits."""


class Work:
    """Work that tells whether it was begun."""

    def __init__(self) -> None:
        self.is_begun = False

    def run(self) -> None:
        """Begin."""
        self.is_begun = True


def test_starting_a_thread_does_not_wait_for_one_that_lacks_memory() -> None:
    subprocess.run([sys.executable, "-c", STARTS], check=True, timeout=PROGRAM_S)


@pytest.mark.parametrize("dies_in", ["_bootstrap_inner", "run"])
def test_thread_that_dies_before_its_work_leaves_nothing_behind(
    dies_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may take the memory for its first frames meanwhile, before or after `Thread` calls it begun.

    `threading` keeps one that never began. With it, it kept the model that the thread was to serve: no other model
    had room any more.
    """
    monkeypatch.setattr(vital_work, "_BEGIN_S", 1)
    live = getattr(threading.Thread, dies_in)

    def die(thread: threading.Thread) -> None:
        if thread.name != "dies":
            live(thread)

    monkeypatch.setattr(threading.Thread, dies_in, die)
    work = Work()
    kept = weakref.ref(work)
    with pytest.raises(MemoryError, match="a new thread did not begin within 1 s"):
        start_thread(work.run, "dies")
    del work
    assert kept() is None


def test_thread_that_comes_too_late_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller has been told that there is none."""
    monkeypatch.setattr(vital_work, "_BEGIN_S", 1)
    given_up, ended = threading.Event(), threading.Event()
    begin: Callable[[threading.Thread], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin_late(thread: threading.Thread) -> None:
        is_late = thread.name == "late"
        if is_late:
            given_up.wait(PATIENCE_S)
        begin(thread)
        if is_late:
            ended.set()

    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", begin_late)
    work = Work()
    with pytest.raises(MemoryError):
        start_thread(work.run, "late")
    given_up.set()
    assert ended.wait(PATIENCE_S)
    assert not work.is_begun


@pytest.mark.parametrize(
    ("error", "code"), [(MemoryError(), ExitCode.NO_MEMORY), (ValueError(), ExitCode.CRASHED)]
)
def test_work_that_fails_ends_the_process(error: Exception, code: ExitCode) -> None:
    codes: list[ExitCode] = []

    def fail() -> None:
        raise error

    start_thread(fail, "fails", end_process=codes.append).join(PATIENCE_S)
    assert codes == [code]
