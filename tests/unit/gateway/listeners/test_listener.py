"""The end of a frontend's connections: no answer is lost, and no connection is polled."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from tests.patience import PATIENCE_S
from tests.puppets import metric_memory, puppet_service

from stoker.gateway.gateway import Gateway
from stoker.gateway.listeners.app_throttle import _BEGUN_A_TURN
from stoker.gateway.listeners.listener import _CLOSED_A_TURN, Listener
from stoker.gateway.model_directory import ModelDirectory
from stoker.keys.access import Access
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


class PuppetApp:
    """Answers every request with 204, when its gate is open.

    Attributes:
        paths: What it was asked for, in this order.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.body = b""
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        self.begun.set()
        await self.gate.wait()
        status = 200 if self.body else 204
        headers = [(b"content-length", str(len(self.body)).encode())] if self.body else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Stage:
    """A listener in this process and its callers, whose sockets block nobody."""

    def __init__(self, listener: Listener, app: PuppetApp, address: tuple[str, int]) -> None:
        self.listener, self.app, self.address = listener, app, address

    async def caller(self) -> socket.socket:
        """A new connection, on which one request has been answered."""
        loop, sock = asyncio.get_running_loop(), socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, self.address)
        assert (await self.answers(sock, REQUEST)).startswith(b"HTTP/1.1 204")
        return sock

    async def answers(self, sock: socket.socket, request: bytes = b"") -> bytes:
        """Return the next bytes of a connection; empty at its end."""
        if request:
            sock.send(request)
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 4096), PATIENCE_S)


@asynccontextmanager
async def staged(connection_age_s: float = 0.0, gateway: Gateway | None = None) -> AsyncIterator[Stage]:
    """A listener, by default without services."""
    app, sock = PuppetApp(), socket.create_server(("127.0.0.1", 0))
    address = sock.getsockname()
    gateway = gateway or Gateway(ModelDirectory({}), metric_memory())
    listener = Listener(app, gateway, [sock], connection_age_s=connection_age_s)
    await listener.start()
    try:
        yield Stage(listener, app, address)
    finally:
        app.gate.set()
        await listener.stop_listening()
        await listener.finish(PATIENCE_S)


def sweep(listener: Listener, monkeypatch: pytest.MonkeyPatch, later_s: float) -> None:
    """Look at all connections as if it were so much later."""
    now_s = asyncio.get_running_loop().time()
    with monkeypatch.context() as later:
        later.setattr(asyncio.get_running_loop(), "time", lambda: now_s + later_s)
        listener.sweep()


async def test_requests_that_wait_in_the_kernel_are_answered() -> None:
    """Idle connections are closed at the end, but not those whose callers have sent one more request meanwhile."""
    async with staged() as stage:
        callers = [await stage.caller() for _ in range(3 * _CLOSED_A_TURN)]
        asking, idle = callers[::2], callers[1::2]
        for caller in asking:
            caller.send(REQUEST)
        # The loop has not turned since, so the listener has not read them.
        finishing = asyncio.ensure_future(stage.listener.finish(PATIENCE_S))
        for caller in asking:
            assert (await stage.answers(caller)).startswith(b"HTTP/1.1 204")
        for caller in idle:
            assert await stage.answers(caller) == b""
        for caller in asking:
            caller.close()
        assert await finishing == 0
        for caller in idle:
            caller.close()


async def test_the_end_waits_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a request is under way, nothing looks many times a second whether it still is."""
    async with staged() as stage:
        caller = await stage.caller()
        stage.app.begun.clear()
        stage.app.gate.clear()
        caller.send(REQUEST)
        await stage.app.begun.wait()
        loop, delays_s = asyncio.get_running_loop(), []
        call_at = loop.call_at

        def noted(when: float, *arguments: object, **options: object) -> asyncio.TimerHandle:
            delays_s.append(when - loop.time())
            return call_at(when, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_at", noted)
        finishing = asyncio.ensure_future(stage.listener.finish(PATIENCE_S))
        for _ in range(10):
            await asyncio.sleep(0)
        assert delays_s
        assert min(delays_s) > 0.5
        stage.app.gate.set()
        assert (await stage.answers(caller)).startswith(b"HTTP/1.1 204")
        caller.close()
        assert await finishing == 0


async def test_an_old_connection_ends_with_its_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has `Connection: close`; a younger or idle connection stays open."""
    async with staged(connection_age_s=100.0) as stage:
        caller = await stage.caller()
        sweep(stage.listener, monkeypatch, later_s=79.0)
        assert b"connection: close" not in await stage.answers(caller, REQUEST)
        sweep(stage.listener, monkeypatch, later_s=121.0)
        answer = await stage.answers(caller, REQUEST)
        assert answer.startswith(b"HTTP/1.1 204")
        assert b"connection: close" in answer
        assert await stage.answers(caller) == b""
        caller.close()


async def test_a_request_under_way_is_the_last_of_an_old_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to it says so, if it has not begun when the connection becomes old."""
    async with staged(connection_age_s=1.0) as stage:
        caller = await stage.caller()
        stage.app.begun.clear()
        stage.app.gate.clear()
        caller.send(REQUEST)
        await stage.app.begun.wait()
        sweep(stage.listener, monkeypatch, later_s=2.0)
        stage.app.gate.set()
        assert b"connection: close" in await stage.answers(caller)
        assert await stage.answers(caller) == b""
        caller.close()


async def test_connections_become_old_one_after_the_other() -> None:
    """Those that were made together end spread over two fifths of their age, around it."""
    async with staged(connection_age_s=100.0) as stage:
        begun_s = asyncio.get_running_loop().time()
        callers = [await stage.caller() for _ in range(20)]
        ages_s = sorted(connection.retires_s - begun_s for connection in stage.listener.connections)
        assert 80.0 <= ages_s[0] < 85.0
        assert 115.0 < ages_s[-1] < 125.0
        assert max(later - earlier for earlier, later in pairwise(ages_s)) < 6.0
        for caller in callers:
            caller.close()


async def test_connections_without_a_maximum_age_stay_open() -> None:
    """Without the setting no connection becomes old."""
    async with staged() as stage:
        caller = await stage.caller()
        (connection,) = stage.listener.connections
        assert connection.retires_s == math.inf
        caller.close()


async def test_listener_off_the_port_leaves_the_sockets_to_others(anyio_backend_name: str) -> None:
    """Others accept on the shared socket, whether this listener never began or has left the port."""
    memory = metric_memory()
    with socket.create_server(("127.0.0.1", 0)) as shared:
        idle = Listener(PuppetApp(), Gateway(ModelDirectory({}), memory), [shared.dup()])
        await idle.stop_listening()
        left = Listener(PuppetApp(), Gateway(ModelDirectory({}), memory), [shared.dup()])
        await left.start()
        left.leave_port()
        await left.stop_listening()
        await left.finish(0)
        idle.leave_port()
        with socket.create_connection(shared.getsockname(), timeout=PATIENCE_S) as caller:
            shared.setblocking(True)
            taken, _ = shared.accept()
            with taken:
                taken.send(b"taken")
            assert caller.recv(5) == b"taken"


async def test_a_listener_that_begins_never_lets_a_shared_socket_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process may look for a connection on it at any time, and would stand still if there is none."""
    memory = metric_memory()
    loop, create_server = asyncio.get_running_loop(), asyncio.get_running_loop().create_server
    blocked = []

    async def create(*arguments: Any, sock: socket.socket, **more: Any) -> asyncio.Server:
        blocked.append(os.get_blocking(sock.fileno()))
        return await create_server(*arguments, sock=sock, **more)

    monkeypatch.setattr(loop, "create_server", create)
    with socket.create_server(("127.0.0.1", 0)) as shared:
        os.set_blocking(shared.fileno(), False)
        listener = Listener(
            PuppetApp(), Gateway(ModelDirectory({}), memory), [socket.socket(fileno=os.dup(shared.fileno()))]
        )
        await listener.start()
        listener.leave_port()
        await listener.finish(0)
    assert blocked
    assert not any(blocked)


async def test_an_answer_that_is_not_taken_yet_is_sent_to_its_end() -> None:
    """Its caller is slower than the drain: the connection is not idle before it has all."""
    length = 1 << 23

    async with staged() as stage:
        stage.app.body = bytes(length)
        sock = socket.socket()
        with sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, stage.address)
            received = len(await stage.answers(sock, REQUEST))
            finishing = asyncio.ensure_future(stage.listener.finish(PATIENCE_S))
            for _ in range(10):
                await asyncio.sleep(0)
            while piece := await asyncio.wait_for(loop.sock_recv(sock, 1 << 16), PATIENCE_S):
                received += len(piece)
        assert received > length
        assert await finishing == 0


async def test_a_flood_of_the_index_waits_for_its_turns() -> None:
    """A few of its requests begin in each turn of the loop, in their order; who scores with a key waits for none."""
    keys = Keys("the-key-of-this-test-01", "the-key-of-this-test-02")
    access = Access(KeyVerifier(Path("no-keys"), "m", keys))
    gateway = Gateway(ModelDirectory({"m": puppet_service(access=access)}), metric_memory())
    scoring = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n"
    async with staged(gateway=gateway) as stage:
        app, callers = stage.app, [await stage.caller() for _ in range(50)]
        app.paths.clear()
        for number, caller in enumerate(callers[:-2]):
            caller.send(REQUEST.replace(b"/ ", b"/%d " % number))
        callers[-2].send(scoring + b"\r\n")
        callers[-1].send(scoring + b"Authorization: Bearer the-key-of-this-test-01\r\n\r\n")
        begun = [0]
        while len(app.paths) < len(callers):
            await asyncio.sleep(0)
            begun.append(len(app.paths))
        assert max(later - before for before, later in pairwise(begun)) <= _BEGUN_A_TURN + 1
        scored = [place for place, path in enumerate(app.paths) if path.startswith("/v1/")]
        assert scored[0] < 3 * _BEGUN_A_TURN, "the one with the key"
        assert scored[1] == len(callers) - 1, "the one without"
        others = [path for path in app.paths if not path.startswith("/v1/")]
        assert others == [f"/{number}" for number in range(len(callers) - 2)]
        for caller in callers:
            assert (await stage.answers(caller)).startswith(b"HTTP/1.1 204")
            caller.close()


async def test_caller_that_left_before_its_turn_is_not_answered() -> None:
    """A flood whose callers leave costs nothing more."""
    async with staged() as stage:
        app, callers = stage.app, [await stage.caller() for _ in range(50)]
        app.paths.clear()
        for caller in callers:
            caller.send(REQUEST)
        while not app.paths:  # noqa: ASYNC110  # turns of the loop are what is looked at
            await asyncio.sleep(0)
        for connection in stage.listener.connections:
            connection.transport.abort()
        for _ in range(len(callers)):
            await asyncio.sleep(0)
        assert not stage.listener.connections
        assert len(app.paths) <= 4 * _BEGUN_A_TURN < len(callers)
        for caller in callers:
            caller.close()
