"""HTTP over TLS in one process: handshakes, certificates that change, and ends that lose nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from tests.certificates import Authority, client_context, make_pair, replace_pair
from tests.patience import PATIENCE_S
from tests.puppets import metric_memory

from stoker.gateway.gateway import Gateway
from stoker.gateway.listeners import tls
from stoker.gateway.listeners import tls_protocol as secure_protocol
from stoker.gateway.listeners.listener import _UNREAD_AT_END_S, Listener
from stoker.gateway.listeners.tls import TlsListener
from stoker.gateway.model_directory import ModelDirectory
from stoker.metrics import table
from stoker.metrics.memory import MetricMemory
from stoker.system.certificates import TlsFiles

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
LONG_BYTES = 16 << 20


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvloop, as in frontends: these tests are about the end of its TLS."""
    return "asyncio", {"use_uvloop": True}


class PuppetApp:
    """Answers with 204, or where the path is /long, with more than the kernel takes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = bytes(LONG_BYTES) if scope["path"] == "/long" else b""
        length = [(b"content-length", str(len(content)).encode())] if content else []
        await send({"type": "http.response.start", "status": 200 if content else 204, "headers": length})
        await send({"type": "http.response.body", "body": content})


class Caller:
    """A connection of TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def certificate(self) -> Any:
        """Return the certificate of the server."""
        return self.writer.get_extra_info("ssl_object").getpeercert()

    async def asks(self) -> bytes:
        """The status line of the answer to a request; empty at the end."""
        self.writer.write(REQUEST)
        answer = await asyncio.wait_for(self.reader.read(4096), PATIENCE_S)
        return answer.partition(b"\r\n")[0]

    async def closes_silently(self) -> bool:
        """Whether nothing more comes."""
        return not await asyncio.wait_for(self.reader.read(), PATIENCE_S)

    def close(self) -> None:
        """Be gone at once."""
        self.writer.transport.abort()


class Stage:
    """A listener and those who call it."""

    def __init__(self, listener: Listener, port: TlsListener, address: Any, memory: Any) -> None:
        self.listener, self.port, self.address, self.memory = listener, port, address, memory

    async def caller(self, context: ssl.SSLContext, sock: socket.socket | None = None) -> Caller:
        """A connection, over a socket that is connected already where there is one."""
        where = {"sock": sock} if sock is not None else dict(zip(("host", "port"), self.address, strict=True))
        opening = asyncio.open_connection(**where, ssl=context, server_hostname="localhost")
        return Caller(*await asyncio.wait_for(opening, PATIENCE_S))

    async def silent(self) -> socket.socket:
        """A connection on which nothing is sent."""
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        return sock

    def failures(self) -> dict[str, int]:
        """Handshakes that have failed, by the reason; only reasons that occurred."""
        words = self.memory.totals().words
        return {
            reason: int(words[place])
            for (protocol, reason), place in table.HANDSHAKE_FAILED.places.items()
            if words[place] and protocol == "http"
        }


def expiries(memory: MetricMemory) -> dict[str, int]:
    """When the certificates of ports expire, by protocol."""
    words = memory.totals().words
    places = table.CERTIFICATE_EXPIRIES.places
    return {protocol: int(words[place]) for (protocol,), place in places.items() if words[place]}


@asynccontextmanager
async def staged(files: TlsFiles) -> AsyncIterator[Stage]:
    """A listener that speaks TLS alone."""
    memory, sock = metric_memory(), socket.create_server(("127.0.0.1", 0))
    port, address = TlsListener(files, "http", memory.page(0)), sock.getsockname()
    listener = Listener(PuppetApp(), Gateway(ModelDirectory({}), memory), [sock], tls=port)
    await listener.start()
    try:
        yield Stage(listener, port, address, memory)
    finally:
        await listener.stop_listening()
        await listener.finish(PATIENCE_S)


async def until(look: Callable[[], object], part: str) -> None:
    """Look again and again, for a while."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not look():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {part}"
        await asyncio.sleep(0.001)


async def test_another_certificate_is_shown_to_new_callers_alone(tmp_path: Path) -> None:
    """Present callers keep their connections, and its expiry is logged anew."""
    files = make_pair(tmp_path, days=5)
    async with staged(files) as stage:
        first = expiries(stage.memory)["http"]
        before = await stage.caller(client_context(files.certificate))
        replace_pair(files, tmp_path, days=20)
        for _ in range(2):
            stage.port.check_certificate()
        after = await stage.caller(client_context(files.certificate))
        assert after.certificate["serialNumber"] != before.certificate["serialNumber"]
        assert await before.asks() == await after.asks() == b"HTTP/1.1 204 No Content"
        assert expiries(stage.memory)["http"] > first
        assert "grpc" not in expiries(stage.memory)
        for caller in (before, after):
            caller.close()


async def test_http_1_1_is_negotiated(tmp_path: Path) -> None:
    """Over TLS 1.2 at least, and no older one."""
    files = make_pair(tmp_path)
    async with staged(files) as stage:
        context = client_context(files.certificate)
        context.set_alpn_protocols(["h2", "http/1.1"])
        caller = await stage.caller(context)
        spoken = caller.writer.get_extra_info("ssl_object")
        assert spoken.selected_alpn_protocol() == "http/1.1"
        assert spoken.version() == "TLSv1.3"
        caller.close()
        old = client_context(files.certificate)
        old.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            old.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await stage.caller(old)
        await until(lambda: stage.failures() == {"refused": 1}, "it was counted")


async def test_plain_http_on_a_tls_port_is_answered_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets the reason; the operator gets one line for many such callers."""
    async with staged(make_pair(tmp_path)) as stage:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*stage.address)
            writer.write(REQUEST)
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert b"its address begins with https://" in answer
            writer.close()
        await until(lambda: stage.failures() == {"not_tls": 3}, "all are counted")
        assert [record.getMessage() for record in caplog.records] == [
            "TLS handshakes for http that failed: 1; the last one: the caller speaks plain HTTP: http:// where "
            "https:// is meant"
        ]


async def test_a_handshake_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody holds a connection by saying nothing; who goes away by himself is counted as such."""
    monkeypatch.setattr(tls, "_HANDSHAKE_S", 0.01)
    async with staged(make_pair(tmp_path)) as stage:
        with await stage.silent() as sock:
            assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
        await until(lambda: stage.failures() == {"timeout": 1}, "it was counted")
        monkeypatch.setattr(tls, "_HANDSHAKE_S", PATIENCE_S)
        (await stage.silent()).close()
        await until(lambda: stage.failures() == {"timeout": 1, "closed": 1}, "so was this one")
        assert not stage.port.pending


async def test_callers_show_their_certificate_where_they_have_to(tmp_path: Path) -> None:
    """One that the authority has signed; others are refused."""
    authority = Authority.made(tmp_path)
    own = make_pair(tmp_path, "caller", authority=authority, stem="caller")
    files = replace(make_pair(tmp_path), client_ca=authority.file)
    async with staged(files) as stage:
        caller = await stage.caller(client_context(files.certificate, own))
        assert await caller.asks() == b"HTTP/1.1 204 No Content"
        caller.close()
        # In TLS 1.3 a caller learns with its first answer that it was refused.
        nobody = await stage.caller(client_context(files.certificate))
        await until(lambda: stage.failures() == {"refused": 1}, "it was refused")
        nobody.close()


async def test_the_end_waits_for_handshakes_and_sent_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handshake under way is served; idle callers get a close, and are not waited for."""
    files = make_pair(tmp_path)
    context = client_context(files.certificate)
    monkeypatch.setattr(secure_protocol, "_QUIET_MS", 0)
    async with staged(files) as stage:
        idle, asking = [await stage.caller(context) for _ in range(3)], await stage.caller(context)
        for caller in (*idle, asking):
            assert await caller.asks() == b"HTTP/1.1 204 No Content"
        sock = await stage.silent()
        await until(lambda: stage.port.pending, "it was accepted")
        ending = asyncio.ensure_future(_end(stage.listener))
        await until(lambda: not stage.port.listening, "nobody is accepted any more")
        late = await stage.caller(context, sock)
        assert await late.asks() == b"HTTP/1.1 204 No Content"
        assert await asking.asks() in (b"HTTP/1.1 204 No Content", b"")
        for caller in (*idle, late, asking):
            assert await caller.closes_silently()
        assert await ending == 0


async def test_connection_with_a_possibly_partial_record_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that has just received bytes may wait for the rest of a record, so it stays open."""
    files = make_pair(tmp_path)
    async with staged(files) as stage:
        caller = await stage.caller(client_context(files.certificate))
        await caller.asks()
        (connection,) = stage.listener.connections
        monkeypatch.setattr(secure_protocol, "_QUIET_MS", 1 << 31)
        connection.close_unless_readable()
        assert not connection.transport.is_closing()
        monkeypatch.setattr(secure_protocol, "_QUIET_MS", 0)
        connection.close_unless_readable()
        assert await caller.closes_silently()
        caller.close()


async def test_slow_reader_counts_as_reading(tmp_path: Path) -> None:
    """Over TLS the loop's buffer is unknown, but the acknowledged bytes are known."""
    files = make_pair(tmp_path)
    async with staged(files) as stage:
        caller = await stage.caller(client_context(files.certificate))
        (connection,) = stage.listener.connections
        await until(lambda: not connection.unacknowledged_bytes, "it has taken all")
        caller.writer.write(REQUEST.replace(b"/ ", b"/long ", 1))
        await until(lambda: connection.unacknowledged_bytes, "the kernel has as much as it takes")
        before = connection.unacknowledged_bytes
        head = await asyncio.wait_for(caller.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert head.startswith(b"HTTP/1.1 200")
        body = await asyncio.wait_for(caller.reader.readexactly(LONG_BYTES), PATIENCE_S)
        assert not any(body)
        assert connection.unacknowledged_bytes < before
        caller.close()


async def test_closing_connection_of_a_silent_caller_is_ended_by_sweeps(tmp_path: Path) -> None:
    """Sweeps end a closing connection whose caller stays silent."""
    files = make_pair(tmp_path)
    async with staged(files) as stage:
        caller = await stage.caller(client_context(files.certificate))
        (connection,) = stage.listener.connections
        caller.writer.transport.pause_reading()
        connection.transport.close()
        for _ in range(_UNREAD_AT_END_S + 1):
            stage.listener.sweep()
        await until(lambda: not stage.listener.connections, "it has ended")
        caller.close()


async def test_an_idle_caller_need_not_confirm_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who keep connections in a pool look at them when they need one."""
    files = make_pair(tmp_path)
    context = client_context(files.certificate)
    monkeypatch.setattr(secure_protocol, "_QUIET_MS", 0)
    async with staged(files) as stage:

        def connected() -> ssl.SSLSocket:
            return context.wrap_socket(socket.create_connection(stage.address), server_hostname="localhost")

        with await asyncio.to_thread(connected):
            await until(lambda: stage.listener.connections, "the handshake has ended")
            (connection,) = stage.listener.connections
            connection.close_unless_readable()
            await until(lambda: not stage.listener.connections, "it has ended")


async def _end(listener: Listener) -> int:
    await listener.stop_listening()
    return await listener.finish(PATIENCE_S)
