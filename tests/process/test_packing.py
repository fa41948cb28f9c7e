"""Models that share a device process although they were loaded one after the other, and a process that is lost."""

from __future__ import annotations

import dataclasses
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest
from tests.http.raw_http import bearer, request
from tests.live_server import LiveServer, run_stoker, wait_until
from tests.patience import PROGRAM_S
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve
from tests.tables import write_table
from tests.tiny_models import write_doubler, write_mlp

from stoker.control.channel import ControlChannel
from stoker.control.device_messages import (
    SUPERVISOR_END,
    DeviceChosen,
    Failed,
    FromDevice,
    Loaded,
    LoadModel,
    StartDevice,
    ToDevice,
    Unloaded,
    UnloadModel,
)
from stoker.deployment import Deployment
from stoker.metrics.layout import FIRST_DEVICE_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.supervisor import device_processes
from stoker.system import module_process
from stoker.system.logs import log_settings
from stoker.system.resources import private_memory

pytestmark = pytest.mark.long

Ask = Callable[[str, str], int]
Reply = TypeVar("Reply", bound=FromDevice)

# `make soak` asks for more of both.
MODELS: Final = int(os.environ.get("STOKER_TEST_MODELS", "2"))
CYCLES: Final = int(os.environ.get("STOKER_TEST_CYCLES", "30"))
TABLE_BYTES: Final = 24 << 20


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with models that the server starts with."""
    for number in range(MODELS + 2):
        write_doubler(tmp_path / "repository" / f"m{number:02}" / "1" / "model.onnx")
    return tmp_path / "repository"


def _admin(server: LiveServer) -> Ask:
    """Load or unload a model of a server; returns the status."""
    key = run_stoker("keys", "show", "admin", "--workspace", server.workspace).stdout.strip()

    def ask(action: str, name: str) -> int:
        with server.connect() as connection:
            connection.socket.settimeout(PROGRAM_S)
            path = f"/v2/repository/models/{name}/{action}"
            return connection.ask(request("POST", path, [bearer(key)], b"")).status

    return ask


def _callers(server: LiveServer, name: str) -> Callers:
    return Callers(
        server.port, scored(server.key, f"/api/v1/service/{name}/score"), kept_alive=2, pause_s=0.01
    )


def test_models_share_a_process_and_only_they_are_lost_with_it(serve: Serve, repository: Path) -> None:
    """Loaded and unloaded beside callers; killed, their requests get errors, and no request of others fails."""
    server = serve(repository, "--frontends", "1", "--models-per-process", str(MODELS))
    ask = _admin(server)
    processes = sorted(server.device_pids())
    beside = f"m{MODELS:02}"
    with _callers(server, "m00") as first:
        for name in ("m01", f"m{MODELS + 1:02}"):
            assert (ask("unload", name), ask("load", name)) == (200, 200)
        assert [outcome for outcome in first.stop() if not outcome.right] == []
    assert sorted(server.device_pids()) == processes, "each has gone back to where there was room"

    with (
        _callers(server, "m00") as lost,
        _callers(server, "m01") as neighbour,
        _callers(server, beside) as others,
    ):
        wait_until(lambda: all(one.answered(20) for one in (lost, neighbour, others)), "the load runs")
        os.kill(processes[0], signal.SIGKILL)
        wait_until(lambda: server.ready and len(server.device_pids()) == 2, "all serve again")
        answered = [len(one.outcomes) for one in (lost, neighbour)]
        wait_until(
            lambda: lost.answered(answered[0] + 20) and neighbour.answered(answered[1] + 20),
            "the load runs again",
        )
        outcomes = lost.stop() + neighbour.stop()
        assert [outcome for outcome in others.stop() if not outcome.right] == []
    assert processes[1] in server.device_pids()
    assert {outcome.status for outcome in outcomes} == {200, 503}
    assert all(outcome.right for outcome in outcomes if outcome.status == 200)
    codes = {outcome.answer.error_code() for outcome in outcomes if outcome.answer and outcome.status == 503}
    assert codes <= {"device_lost", "not_ready"}


class Device:
    """A device process with a model that stays, without a server."""

    def __init__(self, model: Deployment) -> None:
        self._channel: ControlChannel[ToDevice, FromDevice]
        self._channel, far = ControlChannel.pair(SUPERVISOR_END)
        command = [sys.executable, "-P", "-m", module_process.__name__, "stoker.device.process"]
        with far:
            self.process = subprocess.Popen(
                [*command, "--control-fd", str(far.fileno())],
                pass_fds=[far.fileno()],
                env=os.environ | device_processes._PACKING,
            )
        fds = [MetricMemory.create(), os.memfd_create("turns")]
        start = StartDevice(
            "cpu", FIRST_DEVICE_PAGE, "cpu", False, None, (model,), None, log_settings(), packs=True
        )
        self._channel.send(start, fds)
        for fd in fds:
            os.close(fd)

    def close(self) -> None:
        """Let it end."""
        self._channel.close()
        self.process.wait(PROGRAM_S)

    def ask(self, message: ToDevice, kind: type[Reply] | tuple[type[Reply], ...]) -> Reply:
        """Send it a message; returns its answer."""
        self._channel.send(message)
        return self.hear(kind)

    def hear(self, kind: type[Reply] | tuple[type[Reply], ...]) -> Reply:
        """Wait for its next message, which is of one of these kinds."""
        received = None
        while received is None:
            try:
                received = self._channel.receive()
            except BlockingIOError:
                select.select([self._channel], [], [], PROGRAM_S)
        assert isinstance(received[0], kind), received
        return received[0]


@pytest.fixture
def mlp(tmp_path: Path) -> Deployment:
    """A model that takes some MB of memory."""
    path = write_mlp(tmp_path / "mlp.onnx")
    return Deployment("mlp", 1, "onnx", path, tmp_path, max_batch_rows=256, max_body_bytes=1000)


@pytest.fixture
def device(mlp: Deployment) -> Iterator[Device]:
    """A device process with that model."""
    with closing(Device(mlp)) as started:
        started.hear(DeviceChosen)
        started.hear(Loaded)
        yield started


def test_unloaded_model_gives_its_memory_back(device: Device, mlp: Deployment) -> None:
    """Repeated loads leave less than a quarter of the memory that they took."""
    pid = device.process.pid
    taken_bytes, first_bytes = 0, 0
    for number in range(1, CYCLES + 1):
        again = dataclasses.replace(mlp, number=number, slot=1)
        taken_bytes += device.ask(LoadModel(again), Loaded).memory_bytes
        device.ask(UnloadModel(number), Unloaded)
        first_bytes = first_bytes or private_memory(pid)
    grown_bytes = private_memory(pid) - first_bytes
    assert grown_bytes < min(taken_bytes / 4, 30 << 20), (grown_bytes, taken_bytes)


WORN = """
import sys

if "stoker.cli" in sys.orig_argv:
    from pathlib import Path

    from stoker.supervisor import device_processes, supervisor

    device_processes._GROWTH = device_processes._SLACK_BYTES = 0
    supervisor._WORN_S = 0.1
    find = device_processes.DeviceProcesses.find_worn

    def find_once(self):
        if not Path(__file__).with_name("worn").exists():
            return None
        worn = find(self)
        if worn is not None:
            device_processes._SLACK_BYTES = 1 << 40
        return worn

    device_processes.DeviceProcesses.find_worn = find_once
"""
"""Imported by the supervisor at its start: to it the first process is worn as soon as there is a file `worn`."""


def test_worn_process_is_recycled_without_losses(serve: Serve, repository: Path, tmp_path: Path) -> None:
    """Its models move to another process one by one under load, and it ends."""
    (tmp_path / "sitecustomize.py").write_text(WORN, encoding="utf-8")
    server = serve(
        repository, "--frontends", "1", "--models-per-process", "100", env={"PYTHONPATH": str(tmp_path)}
    )
    (worn,) = server.device_pids()
    with _callers(server, "m00") as first, _callers(server, "m01") as second:
        wait_until(lambda: first.answered(10) and second.answered(10), "the load runs")
        (tmp_path / "worn").touch()
        wait_until(
            lambda: len(server.device_pids()) == 1 and worn not in server.device_pids(), "it has ended"
        )
        count = len(first.outcomes)
        wait_until(lambda: len(first.outcomes) > count + 20, "the load runs on")
        outcomes = first.stop() + second.stop()
    assert [outcome for outcome in outcomes if not outcome.right] == []
    assert f"a device process with {MODELS + 2} models is recycled: it has" in server.output()


def test_load_without_memory_leaves_no_memory_behind(device: Device, tmp_path: Path) -> None:
    """Wherever it fails, what it took is free for the next one, which has to fit into a budget."""
    path = write_table(tmp_path / "table.onnx", TABLE_BYTES, 0)
    table = Deployment("table", 1, "onnx", path, tmp_path, max_batch_rows=8, max_body_bytes=1000)
    pid = device.process.pid

    def load(number: int) -> Loaded | Failed:
        answer = device.ask(LoadModel(dataclasses.replace(table, number=number, slot=1)), (Loaded, Failed))
        if isinstance(answer, Loaded):
            device.ask(UnloadModel(number), Unloaded)
        return answer

    load(1)
    before_bytes, left_bytes = private_memory(pid), []
    for number in range(2, 2 + CYCLES):
        with limited_memory(pid, number % 10 * (TABLE_BYTES // 4)):
            answer = load(number)
        if isinstance(answer, Failed):
            left_bytes.append(private_memory(pid) - before_bytes)
    assert len(left_bytes) > CYCLES / 4
    assert max(left_bytes) < TABLE_BYTES / 2


@contextmanager
def limited_memory(pid: int, more_bytes: int) -> Iterator[None]:
    """Let a process have no more memory than it has, and so many bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    soft_bytes, hard_bytes = resource.prlimit(pid, resource.RLIMIT_AS)
    most_bytes = pages * resource.getpagesize() + more_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (most_bytes, hard_bytes))
    yield
    resource.prlimit(pid, resource.RLIMIT_AS, (soft_bytes, hard_bytes))
