"""A device process without memory: a load that fails for it leaves nothing behind, and no work dies in silence.

`RLIMIT_AS` lets any allocation fail. Here each place where one matters fails in turn.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, PROGRAM_S
from tests.puppets import ROWS, PuppetRuntime, double, metric_memory

from stoker.control.channel import ControlChannel
from stoker.control.device_messages import DEVICE_END, SUPERVISOR_END, Failed, UnloadModel
from stoker.deployment import Deployment, Device
from stoker.device import device_turns, hang_watch, loading, model_threads
from stoker.device.device_page import DevicePage, SlotFacts
from stoker.device.device_turns import DeviceTurns
from stoker.device.hang_watch import HangWatch
from stoker.device.loader_thread import LoaderThread
from stoker.device.lock_guard import LockGuard
from stoker.device.model_threads import ModelThreads
from stoker.device.process import _ModelHost
from stoker.device.worker import Worker
from stoker.errors import LoadFailed
from stoker.scripts.call_watchdog import Watchdog
from stoker.system.processes import ExitCode
from stoker.system.vital_work import start_thread, vital

CPU = Device("cpu", 0, "CPU")
MODEL = Deployment("digits", 1, "onnx", Path("model.onnx"), Path(), 8, 1000, instances=2)


def fail(*_: object, **__: object) -> Any:
    """Raise what Python raises without memory."""
    raise MemoryError("no memory")


class Forking(PuppetRuntime):
    """A model that can be forked."""

    def fork(self) -> Forking:
        """A further one."""
        return Forking(ROWS, double)


class Ends:
    """The exit codes with which this process would have ended."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self._ended = threading.Event()

    def note(self, code: int) -> None:
        """Note an end instead of ending."""
        self.codes.append(code)
        self._ended.set()

    def wait(self) -> list[int]:
        """Wait for the first; returns all."""
        assert self._ended.wait(PATIENCE_S), "the process did not end"
        return self.codes


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Notes ends of this process."""
    noted = Ends()
    monkeypatch.setattr(os, "_exit", noted.note)
    return noted


@pytest.fixture
def turns() -> Iterator[DeviceTurns]:
    """The turns of a device."""
    fd = os.memfd_create("turns", os.MFD_CLOEXEC)
    with closing(DevicePage(fd, "cpu")) as page:
        os.close(fd)
        yield DeviceTurns(page)


@pytest.fixture
def channel() -> Iterator[tuple[ControlChannel[Any, Any], _ModelHost]]:
    """The supervisor's end of a channel, and the models of a process at its other end."""
    near, far = ControlChannel.pair(SUPERVISOR_END)
    host = _ModelHost(ControlChannel(far, DEVICE_END))
    with closing(near), far:
        yield near, host


def start_fails(at: str, error: type[Exception]) -> Callable[..., threading.Thread]:
    """Fail to start the threads with this name."""

    def start(run: Callable[[], object], name: str, **options: Any) -> threading.Thread:
        if name == at:
            raise error("a reason")
        return start_thread(run, name, **options)

    return start


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
@pytest.mark.parametrize(
    "at", ["model digits", "model digits (2)", "hang watch of digits", "load_runtime", "teach"]
)
def test_load_that_fails_leaves_nothing_behind(
    at: str,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    turns: DeviceTurns,
    channel: tuple[ControlChannel[Any, Any], _ModelHost],
) -> None:
    """The supervisor is told why, and the model's memory, threads and turns are free for other models.

    Memory that failed loads kept was counted as used, so that there was no room for any load until the next
    collection, which need not come.
    """
    supervisor, host = channel
    runtimes: list[weakref.ref[Forking]] = []

    def load_runtime(*_: object) -> Forking:
        if at == "load_runtime":
            raise error("a reason")
        runtime = Forking(ROWS, double)
        runtimes.append(weakref.ref(runtime))
        return runtime

    def teach(*_: object) -> None:
        if at == "teach":
            raise error("a reason")

    monkeypatch.setattr(loading, "load_runtime", load_runtime)
    monkeypatch.setattr(Worker, "teach", teach)
    for module in (model_threads, hang_watch):
        monkeypatch.setattr(module, "start_thread", start_fails(at, error))
    # pytest keeps what is logged, with its traceback.
    monkeypatch.setattr("stoker.device.process.logger.exception", lambda *_: None)
    before = set(threading.enumerate())
    load = partial(host._load_model, device=CPU, page=metric_memory().page(64), turns=turns, is_alone=False)
    assert isinstance(host._try(load, dataclasses.replace(MODEL, target_ms=20)), LoadFailed)
    assert [runtime() for runtime in runtimes] == [None] * (at not in ("model digits", "load_runtime"))
    assert set(threading.enumerate()) <= before
    assert turns._models == {}
    received = supervisor.receive()
    assert received is not None
    assert isinstance(received[0], Failed)
    assert f"{error.__name__}('a reason')" in received[0].message


def test_loader_that_fails_ends_its_process(ends: Ends) -> None:
    """Loads after it would never be begun."""

    def load(_: Deployment) -> None:
        raise MemoryError("no memory")

    LoaderThread(load).add(MODEL)
    assert ends.wait() == [ExitCode.NO_MEMORY]


def test_unload_that_fails_ends_its_process(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, channel: tuple[ControlChannel[Any, Any], _ModelHost]
) -> None:
    """The supervisor would wait for its answer forever."""
    _, host = channel
    monkeypatch.setattr(ModelThreads, "stop", fail)
    host._models[1] = ModelThreads(MODEL, metric_memory().page(64).model(0))
    host._handle(UnloadModel(1), [])
    assert ends.wait() == [ExitCode.NO_MEMORY]


@pytest.mark.parametrize("name", ["set_result", "set_exception"])
def test_process_ends_if_the_end_of_a_load_cannot_be_reported(
    name: str, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process would wait for it forever."""
    if name == "set_exception":
        monkeypatch.setattr(loading, "load_runtime", fail)
    else:
        monkeypatch.setattr(loading, "load_runtime", lambda *_: PuppetRuntime(ROWS, double))
    model = ModelThreads(dataclasses.replace(MODEL, instances=1), metric_memory().page(64).model(0))
    tell = getattr(model._loaded, name)

    def tell_and_fail(outcome: object) -> None:
        tell(outcome)
        raise MemoryError("no memory")

    monkeypatch.setattr(model._loaded, name, tell_and_fail)

    def start() -> None:
        with suppress(MemoryError):
            model.start(CPU)

    threading.Thread(target=start, daemon=True).start()
    assert ends.wait() == [ExitCode.NO_MEMORY]


def test_thread_that_fails_to_serve_ends_its_process(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers would wait for it."""
    monkeypatch.setattr(loading, "load_runtime", lambda *_: PuppetRuntime(ROWS, double))
    monkeypatch.setattr(Worker, "serve", fail)
    model = ModelThreads(dataclasses.replace(MODEL, instances=1), metric_memory().page(64).model(0))
    model.start(CPU)
    model.serve()
    assert ends.wait() == [ExitCode.NO_MEMORY]


def _watch_runs() -> None:
    HangWatch("digits", 1000, fail).start()


def _guard_the_lock() -> None:
    guard = LockGuard(arm=lambda _: None, disarm=lambda: None)
    guard.start()
    guard.renew = fail  # type: ignore[method-assign]  # only its thread calls it from now on


def _watch_calls() -> None:
    watchdog = Watchdog(100)
    watchdog.check_calls = fail  # type: ignore[method-assign]  # only its thread calls it
    watchdog.start()


def test_lock_is_guarded_again_once_there_is_memory() -> None:
    """Each renewal of the timer starts a thread; one that fails must not be the last."""
    errors = [RuntimeError("unable to start watchdog thread"), MemoryError()]
    armed = threading.Event()

    def arm(_: float) -> None:
        if errors:
            raise errors.pop()
        armed.set()

    guard = LockGuard(arm=arm, disarm=lambda: None)
    guard.add(0, 1000)
    guard.start()
    assert armed.wait(PATIENCE_S)
    guard.stop()


@pytest.mark.parametrize("watch", [_watch_runs, _guard_the_lock, _watch_calls])
def test_watch_that_fails_ends_its_process(watch: Callable[[], None], ends: Ends) -> None:
    """A run that hangs later would never be noticed."""
    watch()
    assert ends.wait()[0] == ExitCode.NO_MEMORY


def test_thread_that_fails_to_wait_for_turns_ends_its_process(
    ends: Ends, turns: DeviceTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model of the process would get that turn again."""
    monkeypatch.setattr(DeviceTurns, "wait_for_work", fail)
    turns.join(1, SlotFacts(threads=1, wants_turns=True))
    device_turns._Keeper(turns, turns._page, 0)
    assert ends.wait() == [ExitCode.NO_MEMORY]


def test_process_ends_even_if_the_log_has_no_memory(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log comes first, but not before all."""
    monkeypatch.setattr("stoker.system.vital_work.logger.exception", fail)
    with pytest.raises(MemoryError), vital("the work"):
        fail()
    assert ends.codes == [ExitCode.NO_MEMORY]


NO_MESSAGE = """
import sys
from stoker.control.channel import ControlChannel
from stoker.device import process

def fail(channel):
    raise MemoryError

ControlChannel.receive = fail
process.main()
"""


def test_process_that_cannot_receive_ends_at_once() -> None:
    """A message may be lost; and the end does not wait for threads, which may be inside of a runtime."""
    near, far = socket.socketpair()
    command = [sys.executable, "-c", NO_MESSAGE, "--control-fd", str(far.fileno())]
    with near, far:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PROGRAM_S, pass_fds=[far.fileno()]
        )
    assert done.returncode == ExitCode.NO_MEMORY
    assert "MemoryError" in done.stderr
