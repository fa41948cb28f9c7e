"""A frontend and what its supervisor tells it: attaching without room, stopping, looking after its services."""

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
from stoker.settings.names import VersionStatus

KEY = "admin-key-of-the-tests-00001"

Said = TypeVar("Said")


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
        self._said: asyncio.Queue[FromFrontend | None] = asyncio.Queue()
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
            self.tell(start, [metrics_fd, sock.fileno()])

    def tell(self, message: ToFrontend, fds: Sequence[int] = ()) -> None:
        """Send the frontend a message."""
        assert self._channel.send(message, fds)

    async def hear(self, kind: type[Said]) -> Said:
        """The next message of the frontend; it has to be of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self._said.get()
        assert message is not None, "the frontend has ended"
        assert isinstance(message, kind), message
        return message

    async def listen(self) -> None:
        """Let it take connections."""
        await self.hear(Started)
        self.tell(Listen())
        await self.hear(Listening)

    def attach(self, generation: int = 1) -> socket.socket:
        """Give it an arena, and return the device's end of the doorbell."""
        near, far = socket.socketpair()
        arena_fd = Arena.create(ROWS, 4)
        self.tell(AttachReplica(0, generation, ROWS, 4), [arena_fd, near.fileno()])
        os.close(arena_fd)
        near.close()
        return far

    def leave(self) -> None:
        """End, as the frontend sees it."""
        with socket.socket(fileno=os.dup(self._channel.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Go away, and let go of what the system lets go of when the frontend ends."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()
        frontend = self.frontend
        await self.running
        self._far.close()
        services, listener = frontend.services, frontend.listener
        for exchange in services.exchanges.values():
            exchange.close()
        listener.leave_port()
        await listener.finish(0)

    def _read(self) -> None:
        received = self._channel.receive()
        self._said.put_nowait(received and received[0])


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
    # What the tests have made by now need not stay.
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
def test_a_replica_for_which_there_is_no_room_costs_that_replica(
    play: Play, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """Its descriptors are lost, or its arena cannot be mapped: connections stay, and the next try is as the first."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.listen()
        async with await AsyncConnection.open(supervisor.port) as kept:
            assert (await kept.ask(request("GET", "/v2/health/live"))).status == 200
            before = open_descriptors()
            with supervisor.attach(3) as doorbell, room_for_descriptors(room):
                assert await supervisor.hear(AttachFailed) == AttachFailed(3)
                assert doorbell.recv(1) == b"", "the device is told too"
            assert open_descriptors() == before
            assert (await kept.ask(request("GET", "/v2/health/ready"))).status == 503
            with supervisor.attach(3):
                assert await supervisor.hear(Attached) == Attached(3)
                assert (await kept.ask(request("GET", "/v2/health/ready"))).status == 200

    play(scene)
    assert "a replica cannot be attached: [Errno 24] Too many open files" in caplog.text


def test_a_message_that_is_lost_ends_the_frontend(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """It would not know what its supervisor believes that it knows; its successor is told all."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.hear(Started)
        supervisor.tell(Route("x" * 100_000, None, {}, ()))
        with room_for_descriptors(0):
            await supervisor.running

    play(scene)
    assert "ending: [Errno 24] a message of another process was lost" in caplog.text


def test_a_frontend_whose_server_is_replaced_while_it_starts_never_listens(play: Play) -> None:
    """It is told to listen when the new server has the port already, and ends like the others."""

    async def scene(supervisor: Supervisor) -> None:
        supervisor.tell(Drain(port_stays=True))
        await supervisor.hear(Started)
        supervisor.tell(Listen())
        supervisor.tell(Stop(1.0))
        assert await supervisor.hear(Stopped) == Stopped(0)

    play(scene)


def test_a_load_that_goes_on_does_not_hold_up_the_end(play: Play) -> None:
    """Whoever waits for it is told that the server shuts down, and so is whoever asks now."""

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
            asked = await supervisor.hear(AskLoad)
            supervisor.tell(Stop(PATIENCE_S))
            answers = [await loading.answer()]
            later.tell(ask[-4:])
            answers.append(await later.answer())
            for answer in answers:
                assert (answer.status, answer.header("x-stoker-error-code")) == (503, "not_ready")
                assert answer.json() == {"error": "The server is shutting down."}
            supervisor.tell(Reply(asked.ticket))
            assert await supervisor.hear(Stopped) == Stopped(cut_off=0)
            await supervisor.running

    play(scene)


def test_messages_are_heeded_while_the_last_requests_are_answered(play: Play) -> None:
    """What they wait for may come in one: larger rows, say."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.listen()
        async with await AsyncConnection.open(supervisor.port) as connection:
            ask = request("POST", "/nothing", [], b"{}")
            assert (await connection.ask(request("GET", "/"))).status == 200
            connection.tell(ask[:-1])
            supervisor.tell(Stop(PATIENCE_S))
            with supervisor.attach():
                await supervisor.hear(Attached)
                supervisor.tell(Listen())
                connection.tell(ask[-1:])
                assert (await connection.answer()).status == 404
                await supervisor.hear(Stopped)

    play(scene)


def test_a_supervisor_that_goes_is_not_stopped_for(play: Play) -> None:
    """It ends at once, whatever it waits for."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.listen()
        async with await AsyncConnection.open(supervisor.port) as connection:
            assert (await connection.ask(request("GET", "/"))).status == 200
            connection.tell(request("POST", "/score", [], b"{}")[:-1])
            supervisor.tell(Stop(PATIENCE_S))
            with supervisor.attach():
                await supervisor.hear(Attached)
            supervisor.leave()
            await supervisor.running
            assert supervisor.frontend.stopping is not None
            assert not supervisor.frontend.stopping.done()
            supervisor.frontend.stopping.cancel()

    play(scene)


def test_a_fault_while_services_are_looked_after_ends_only_that_look(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is called for before anything can go wrong, and the loop shows that it turns."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.hear(Started)
        loop, faults = asyncio.get_running_loop(), asyncio.Queue[Any]()
        loop.set_exception_handler(lambda _, context: faults.put_nowait(context["exception"]))
        with monkeypatch.context() as patched:
            patched.setattr(supervisor.frontend.services, "sweep", lambda: 1 // 0)
            beats = supervisor.page.beats
            for looks in (1, 2, 3):
                assert isinstance(await faults.get(), ZeroDivisionError)
                assert supervisor.page.beats == beats + looks
        loop.set_exception_handler(None)

    play(scene)


def test_a_fault_in_one_service_leaves_the_others_looked_after(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deadlines, counts and retirement go on; the log has the fault once, not many times a second."""

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.hear(Started)
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
        assert await supervisor.hear(Retired) == Retired(1)

    play(scene)
    assert caplog.text.count("looking after digits version 1 failed") == 1


def test_a_service_reports_a_changed_isolation_from_then_on(play: Play) -> None:
    """Of the signature nothing else changes; a service that is not attached, or gone, has none to change."""
    isolation = RowIsolation(False, "watched", "an audit has failed")

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.hear(Started)
        services = supervisor.frontend.services
        (digits,) = services.services.values()
        for number in (0, 7):
            supervisor.tell(IsolationChanged(number, isolation))
        with supervisor.attach():
            await supervisor.hear(Attached)
            assert digits.signature is not None
            assert digits.signature.isolation is None
            supervisor.tell(IsolationChanged(0, isolation))
            supervisor.tell(Retire(7))
            await supervisor.hear(Retired)
            assert digits.signature.isolation == isolation

    play(scene)
