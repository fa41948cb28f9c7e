"""A frontend and the messages of its supervisor: attaching without room, stopping, sweeping its services."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.descriptors import open_descriptors, room_for_descriptors
from tests.http.raw_http import AsyncConnection, request
from tests.patience import PATIENCE_S
from tests.puppets import ROWS

from stoker.arena import Arena
from stoker.control.channel import ControlChannel
from stoker.control.frontend_messages import (
    FRONTEND_END,
    SUPERVISOR_END,
    AdminRules,
    AskLoad,
    Attached,
    AttachFailed,
    AttachReplica,
    Drain,
    FromFrontend,
    IsolationChanged,
    Listen,
    Listening,
    Reply,
    Retire,
    Retired,
    Route,
    RoutedVersion,
    ServerRules,
    Started,
    StartFrontend,
    Stop,
    Stopped,
    ToFrontend,
)
from stoker.deployment import Deployment
from stoker.gateway import frontend as frontend_module
from stoker.gateway.frontend import Frontend
from stoker.metrics.memory import MetricMemory
from stoker.row_isolation import RowIsolation
from stoker.settings.versions import VersionStatus

KEY = "admin-key-of-the-tests-00001"

Message = TypeVar("Message")


class Supervisor:
    """The other end of a frontend's channel.

    Attributes:
        frontend: The frontend; it runs in the same loop.
        running: Its run.
        port: Where it listens.
        page: Its page of the metrics.
    """

    def __init__(self, keys_dir: Path) -> None:
        self._channel, far = ControlChannel.pair(SUPERVISOR_END)
        self._far = ControlChannel(far, FRONTEND_END)
        self.frontend = Frontend(self._far)
        self.running = asyncio.ensure_future(self.frontend.run())
        self._received: asyncio.Queue[FromFrontend | None] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._read)
        metrics_fd = MetricMemory.create()
        self.page = MetricMemory(metrics_fd).page(0)
        with ExitStack() as ours:
            ours.callback(os.close, metrics_fd)
            sock = ours.enter_context(socket.create_server(("127.0.0.1", 0)))
            self.port = sock.getsockname()[1]
            start = StartFrontend(
                page=0,
                server=ServerRules(
                    auth=False,
                    token_auth=False,
                    keys_dir=keys_dir,
                    max_body_bytes=1000,
                    max_image_pixels=1000,
                    frontends=1,
                    large_bodies_bytes=1 << 20,
                ),
                metrics_need_key=False,
                metadata_need_key=False,
                console=True,
                docs=True,
                cors_origins=(),
                tells_version=False,
                title=None,
                service_version="1.0",
                path_prefix="",
                grpc=None,
                admin=AdminRules(polls=False, needs_key=True, key=KEY, local=True),
                services=(_service("digits", 0),),
                models=(Route("digits", 1, {}, (RoutedVersion(1, VersionStatus(0, "AVAILABLE"), 0),)),),
                only="digits",
            )
            self.send(start, [metrics_fd, sock.fileno()])

    def send(self, message: ToFrontend, fds: Sequence[int] = ()) -> None:
        """Send the frontend a message."""
        assert self._channel.send(message, fds)

    async def receive(self, kind: type[Message]) -> Message:
        """The next message of the frontend; it has to be of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self._received.get()
        assert message is not None, "the frontend has ended"
        assert isinstance(message, kind), message
        return message

    async def listen(self) -> None:
        """Let it accept connections."""
        await self.receive(Started)
        self.send(Listen())
        await self.receive(Listening)

    def attach(self, generation: int = 1) -> socket.socket:
        """Send it an arena, and return the device's end of the doorbell."""
        near, far = socket.socketpair()
        arena_fd = Arena.create(ROWS, 4)
        self.send(AttachReplica(0, generation, ROWS, 4), [arena_fd, near.fileno()])
        os.close(arena_fd)
        near.close()
        return far

    def leave(self) -> None:
        """End, as the frontend sees it."""
        with socket.socket(fileno=os.dup(self._channel.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End, and close the descriptors that the system would close."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()
        frontend = self.frontend
        await self.running
        self._far.close()
        services, listener = frontend.services, frontend.ports.http
        for exchange in services.replicas.exchanges.values():
            exchange.close()
        listener.leave_port()
        await listener.finish(0)

    def _read(self) -> None:
        received = self._channel.receive()
        self._received.put_nowait(received and received[0])


def _service(name: str, number: int) -> Deployment:
    return Deployment(
        name,
        1,
        "onnx",
        Path(name),
        Path(),
        max_batch_rows=64,
        max_body_bytes=1 << 20,
        number=number,
        slot=number,
        devices=("cpu", "cuda:1"),
        instances=2,
        max_delay_ms=0.5,
        batch_buckets=(8, 64),
        timeout_ms=1000,
        max_queue_wait_ms=0,
    )


Play = Callable[[Callable[[Supervisor], Awaitable[None]]], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Run a scene with a frontend that serves one model."""
    # The objects of the tests need not be frozen.
    monkeypatch.setattr(frontend_module, "gc", SimpleNamespace(collect=lambda: 0, freeze=lambda: None))

    async def perform(scene: Callable[[Supervisor], Awaitable[None]]) -> None:
        supervisor = Supervisor(tmp_path)
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                await scene(supervisor)
        finally:
            await supervisor.close()

    def run(scene: Callable[[Supervisor], Awaitable[None]]) -> None:
        with np.errstate(over="raise"):
            asyncio.run(perform(scene))

    return run


@pytest.mark.parametrize("room", [0, 1, 2])
def test_attach_without_descriptors_fails_for_that_replica_alone(
    play: Play, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """Its descriptors are lost, or its arena cannot be mapped: connections stay, and the next try succeeds."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.listen()
        async with await AsyncConnection.open(supervisor.port) as kept:
            assert (await kept.ask(request("GET", "/v2/health/live"))).status == 200
            before = open_descriptors()
            with supervisor.attach(3) as doorbell, room_for_descriptors(room):
                assert await supervisor.receive(AttachFailed) == AttachFailed(3)
                assert doorbell.recv(1) == b"", "the device sees its doorbell end"
            assert open_descriptors() == before
            assert (await kept.ask(request("GET", "/v2/health/ready"))).status == 503
            with supervisor.attach(3):
                assert await supervisor.receive(Attached) == Attached(3)
                assert (await kept.ask(request("GET", "/v2/health/ready"))).status == 200

    play(scene)
    assert "a replica cannot be attached: [Errno 24] Too many open files" in caplog.text


def test_a_lost_message_of_the_supervisor_ends_the_frontend(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """Its state would differ from the one that the supervisor assumes; its successor gets all messages."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.receive(Started)
        supervisor.send(Route("x" * 100_000, None, {}, ()))
        with room_for_descriptors(0):
            await supervisor.running

    play(scene)
    assert "ending: [Errno 24] a message of another process was lost" in caplog.text


def test_listen_after_another_server_took_the_port_opens_nothing(play: Play) -> None:
    """The frontend ends like the others."""

    async def scene(supervisor: Supervisor) -> None:
        supervisor.send(Drain(port_stays=True))
        await supervisor.receive(Started)
        supervisor.send(Listen())
        supervisor.send(Stop(1.0))
        assert await supervisor.receive(Stopped) == Stopped(0)

    play(scene)


def test_stop_answers_callers_of_a_pending_load(play: Play) -> None:
    """They get 503, and so do later requests for loads."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.listen()
        path = "/v2/repository/models/letters/load"
        ask = request("POST", path, [("authorization", f"Bearer {KEY}")], b"")
        async with (
            await AsyncConnection.open(supervisor.port) as loading,
            await AsyncConnection.open(supervisor.port) as later,
        ):
            assert (await later.ask(request("GET", "/"))).status == 200
            later.tell(ask[:-4])
            loading.tell(ask)
            question = await supervisor.receive(AskLoad)
            supervisor.send(Stop(PATIENCE_S))
            answers = [await loading.answer()]
            later.tell(ask[-4:])
            answers.append(await later.answer())
            for answer in answers:
                assert (answer.status, answer.header("x-stoker-error-code")) == (503, "not_ready")
                assert answer.json() == {"error": "The server is shutting down."}
            supervisor.send(Reply(question.ticket))
            assert await supervisor.receive(Stopped) == Stopped(cut_off=0)
            await supervisor.running

    play(scene)


def test_stop_handles_messages_until_the_last_answer(play: Play) -> None:
    """The last requests may wait for larger rows, which come in a message."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.listen()
        async with await AsyncConnection.open(supervisor.port) as connection:
            ask = request("POST", "/nothing", [], b"{}")
            assert (await connection.ask(request("GET", "/"))).status == 200
            connection.tell(ask[:-1])
            supervisor.send(Stop(PATIENCE_S))
            with supervisor.attach():
                await supervisor.receive(Attached)
                supervisor.send(Listen())
                connection.tell(ask[-1:])
                assert (await connection.answer()).status == 404
                await supervisor.receive(Stopped)

    play(scene)


def test_run_ends_at_once_when_the_supervisor_goes(play: Play) -> None:
    """The last requests do not hold it."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.listen()
        async with await AsyncConnection.open(supervisor.port) as connection:
            assert (await connection.ask(request("GET", "/"))).status == 200
            connection.tell(request("POST", "/score", [], b"{}")[:-1])
            supervisor.send(Stop(PATIENCE_S))
            with supervisor.attach():
                await supervisor.receive(Attached)
            supervisor.leave()
            await supervisor.running
            assert supervisor.frontend.stopping is not None
            assert not supervisor.frontend.stopping.done()
            supervisor.frontend.stopping.cancel()

    play(scene)


def test_a_fault_in_a_sweep_leaves_the_next_sweep(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sweep is scheduled first, and the beat of the loop is written."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.receive(Started)
        loop, faults = asyncio.get_running_loop(), asyncio.Queue[Any]()
        loop.set_exception_handler(lambda _, context: faults.put_nowait(context["exception"]))
        with monkeypatch.context() as patched:
            patched.setattr(supervisor.frontend.services, "sweep", lambda: 1 // 0)
            beats = supervisor.page.beats
            for sweeps in (1, 2, 3):
                assert isinstance(await faults.get(), ZeroDivisionError)
                assert supervisor.page.beats == beats + sweeps
        loop.set_exception_handler(None)

    play(scene)


def test_a_fault_in_the_sweep_of_one_service_leaves_the_others_swept(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deadlines, counts and retirement go on; the log has the fault once, not many times a second."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.receive(Started)
        services = supervisor.frontend.services
        services.serve(_service("letters", 1))
        digits, letters = services.services.values()
        monkeypatch.setattr(digits, "sweep", lambda _: 1 // 0)
        swept: list[int] = []
        monkeypatch.setattr(letters, "sweep", swept.append)
        services.sweep()
        services.sweep()
        assert len(swept) == 2
        services.retire(1)
        services.sweep()
        assert await supervisor.receive(Retired) == Retired(1)

    play(scene)
    assert caplog.text.count("looking after digits version 1 failed") == 1


def test_isolation_changed_replaces_it_in_the_signature(play: Play) -> None:
    """A service that is not attached, or is gone, has no signature to change."""
    isolation = RowIsolation(False, "watched", "an audit has failed")

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.receive(Started)
        services = supervisor.frontend.services
        (digits,) = services.services.values()
        for number in (0, 7):
            supervisor.send(IsolationChanged(number, isolation))
        with supervisor.attach():
            await supervisor.receive(Attached)
            assert digits.signature is not None
            assert digits.signature.isolation is None
            supervisor.send(IsolationChanged(0, isolation))
            supervisor.send(Retire(7))
            await supervisor.receive(Retired)
            assert digits.signature.isolation == isolation

    play(scene)
