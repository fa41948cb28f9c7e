"""Connections of the gRPC port, frame by frame: slow ones, rude ones, and their ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.puppets import metric_memory
from tests.unit.gateway.grpc.stage import BEARER, rows, staged
from tests.unit.wire.http2.talk import data, frames_of, headers

from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.connection import GrpcConnection
from stoker.gateway.grpc.connection_monitor import ConnectionMonitor, Timeouts
from stoker.gateway.grpc.framing import add_prefix
from stoker.gateway.grpc.messages import HEALTH, SERVICE
from stoker.gateway.grpc.server import GrpcServer
from stoker.gateway.grpc.services import InferenceServicer
from stoker.gateway.model_directory import ModelDirectory
from stoker.wire.http2.fields import Fields, encoded
from stoker.wire.http2.frames import (
    ACK,
    END_STREAM,
    PREFACE,
    ErrorCode,
    Kind,
    frame,
    settings,
    window_update,
)

pytestmark = pytest.mark.anyio

TIMES = Timeouts(handshake_s=10, idle_s=300, silence_s=60, answer_s=20, unread_s=75)
PATH = b":path"


@dataclass
class PuppetTransport:
    """A socket whose peer reads only when the test does.

    Attributes:
        written: What was written.
        unread_bytes: How much of it the peer has not taken.
        end: How the connection was ended.
        reads: Whether what arrives is read.
    """

    written: bytearray = field(default_factory=bytearray)
    unread_bytes: int = 0
    end: str = ""
    reads: bool = True

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("10.0.0.1", 7), "socket": self}.get(name)

    def fileno(self) -> int:
        return 3

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, content: bytes) -> None:
        self.written += content

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def is_closing(self) -> bool:
        return bool(self.end)

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"


class PuppetServer:
    """A server of one connection, with a clock that the test sets; it plays its turns too."""

    def __init__(self, retires_s: float = 1e9, gateway: Gateway | None = None) -> None:
        self.gateway = gateway or Gateway(ModelDirectory({}), metric_memory())
        self.draining = False
        self.turns = self
        self.find = InferenceServicer(self.gateway, 1 << 20).find
        self.transport = PuppetTransport()
        self.connection = GrpcConnection(self)
        self.watch = ConnectionMonitor(self.connection, TIMES, 0.0, retires_s)
        self.now_s = 0.0
        self.connection.connection_made(self.transport)

    def accept_connection(self, *_: object) -> bool:
        return True

    def remove(self, _: GrpcConnection) -> None:
        """It is the only one."""

    def flush_soon(self, connection: GrpcConnection) -> None:
        asyncio.get_running_loop().call_soon(connection.flush)

    def resume_soon(self, connection: GrpcConnection) -> None:
        while connection.resume():
            """No other connection has a turn here."""

    def pass_s(self, seconds: int) -> None:
        """Let time pass, and check the connection each second."""
        for _ in range(seconds):
            self.now_s += 1
            self.watch.check(self.now_s)

    def send(self, *sent: bytes) -> None:
        self.connection.data_received(b"".join(sent))

    def read(self) -> list[tuple[int, int, int, bytes]]:
        """Return the frames that were written since the last call."""
        written, self.transport.written = bytes(self.transport.written), bytearray()
        return list(frames_of(written))

    def goaways(self) -> list[bytes]:
        """Return the reasons with which the connection was ended."""
        return [payload[8:] for kind, _, _, payload in self.read() if kind == Kind.GOAWAY]


def call(path: str, *more: tuple[bytes, bytes]) -> bytes:
    """The fields of a call, as a block."""
    fields: Fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    return encoded([*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more])


@pytest.fixture
async def server() -> PuppetServer:
    """A connection that has been greeted."""
    made = PuppetServer()
    made.send(PREFACE, settings({}))
    made.read()
    return made


LIVE = f"/{SERVICE}/ServerLive"
INFER = f"/{SERVICE}/ModelInfer"
WATCH = f"/{HEALTH}/Watch"
AUTHORIZED = [(name.encode(), value.encode()) for name, value in BEARER]


async def turns(count: int = 5) -> None:
    """Let the loop run all due callbacks."""
    for _ in range(count):
        await asyncio.sleep(0)


def statuses(frames: list[tuple[int, int, int, bytes]]) -> Iterator[bytes]:
    """The status of each call that has ended."""
    for kind, flags, _, payload in frames:
        if kind == Kind.HEADERS and flags & END_STREAM:
            _, _, rest = payload.partition(b"grpc-status")
            yield rest[1 : 1 + rest[0]]


async def test_frames_of_one_turn_are_written_in_one_call(server: PuppetServer) -> None:
    """Answers to many calls are one write."""
    writes: list[int] = []
    server.transport.write = lambda content: writes.append(len(content))  # type: ignore[method-assign]
    server.send(*(headers(n, call(LIVE)) + data(n, add_prefix(b""), ends=True) for n in range(1, 21, 2)))
    await turns()
    assert len(writes) == 1


async def test_calls_leave_no_reference_cycles(server: PuppetServer) -> None:
    """Nothing of them waits for a collection of garbage."""
    server.send(headers(1, call(LIVE)), data(1, add_prefix(b""), ends=True))
    await turns()
    gc.collect()
    # Objects of other tests may become garbage meanwhile.
    gc.freeze()
    gc.disable()
    try:
        for number in range(3, 43, 2):
            path = (LIVE, INFER, "/none", WATCH)[number // 2 % 4]
            server.send(headers(number, call(path)), data(number, add_prefix(b"\xff"), ends=True))
            await turns()
        assert not server.connection.http.streams
        found = gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    assert found == 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (call("/nobody/knows"), b"12"),
        (call(LIVE, (b"grpc-encoding", b"snappy")), b"12"),
        (call(LIVE, (b"grpc-timeout", b"5")), b"3"),
        (call(LIVE, (b"x-request-id", b"x" * 101)), b"3"),
        (call(LIVE).replace(b"application/grpc", b"application/json"), b"12"),
    ],
)
async def test_a_call_with_a_wrong_head_is_refused(
    server: PuppetServer, fields: bytes, status: bytes
) -> None:
    """Their messages need not be sent, and the connection goes on."""
    server.send(headers(1, fields))
    await turns()
    frames = server.read()
    assert list(statuses(frames)) == [status]
    assert (Kind.RST_STREAM, 0, 1, bytes(4)) in frames
    server.send(headers(3, call(LIVE)), data(3, add_prefix(b""), ends=True))
    await turns()
    assert list(statuses(server.read())) == [b"0"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", b"3"),
        (add_prefix(b"") * 2, b"3"),
        (b"\x07\0\0\0\0", b"3"),
        (b"\1\0\0\0\1x", b"3"),
        (b"\0\0", b"3"),
    ],
)
async def test_a_call_without_exactly_one_message_is_refused(
    server: PuppetServer, content: bytes, status: bytes
) -> None:
    """Two messages, none, and bytes that are no message."""
    server.send(headers(1, call(LIVE)), data(1, content, ends=True))
    await turns(10)
    assert list(statuses(server.read())) == [status]


async def test_a_deadline_ends_a_call_that_waits_forever(server: PuppetServer) -> None:
    """Calls of health that are watched, too."""
    server.send(headers(1, call(WATCH, (b"grpc-timeout", b"1n"))), data(1, add_prefix(b""), ends=True))
    await turns()
    assert list(statuses(server.read())) == [b"4"]


async def test_a_deadline_gives_up_the_rows_of_a_stream() -> None:
    """Also of a caller that sends no reset when it stops waiting."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        server = PuppetServer(gateway=stage.gateway)
        head = call(f"/{SERVICE}/ModelStreamInfer", (b"grpc-timeout", b"1S"), *AUTHORIZED)
        message = add_prefix(rows().SerializeToString())
        server.send(PREFACE, settings({}), headers(1, head), data(1, message * 2))
        await stage.infer.has_begun(2)
        for _ in range(2):
            await asyncio.wait_for(stage.infer.given_up.acquire(), PATIENCE_S)
        assert list(statuses(server.read())) == [b"4"]


async def test_a_connection_without_a_preface_is_closed() -> None:
    """Within the time for it."""
    made = PuppetServer()
    made.pass_s(9)
    assert not made.transport.end
    made.send(PREFACE[:10])
    made.pass_s(1)
    assert (made.goaways(), made.transport.end) == ([b"handshake timeout"], "closed")


async def test_a_connection_without_calls_is_closed(server: PuppetServer) -> None:
    """Not one on which somebody watches, as long as the peer is there."""
    server.send(headers(1, call(WATCH)), data(1, add_prefix(b""), ends=True))
    for _ in range(500):
        server.pass_s(1)
        for kind, flags, _, payload in server.read():
            if kind == Kind.PING and not flags & ACK:
                server.send(frame(Kind.PING, ACK, 0, payload))
    assert not server.transport.end
    server.send(frame(Kind.RST_STREAM, 0, 1, bytes(4)))
    for _ in range(299):
        server.pass_s(1)
        server.send(frame(Kind.PING, ACK, 0, bytes(8)))
    assert not server.transport.end
    server.pass_s(2)
    assert (server.goaways(), server.transport.end) == ([b"connection idle"], "closed")


async def test_a_peer_that_answers_no_ping_is_closed(server: PuppetServer) -> None:
    """The ping comes after a minute, and the peer has some time to answer."""
    server.send(headers(1, call(WATCH)), data(1, add_prefix(b""), ends=True))
    server.pass_s(80)
    assert not server.transport.end
    server.pass_s(2)
    assert (server.goaways(), server.transport.end) == ([b"ping_timeout"], "closed")
    server.connection.connection_lost(None)
    assert not server.connection.http.streams


async def test_a_message_that_drips_ends_its_call(server: PuppetServer) -> None:
    """Byte by byte for ten seconds, and longer only as far as they arrive."""
    server.send(headers(1, call(LIVE)))
    server.send(headers(3, call(LIVE)), data(3, add_prefix(bytes(1 << 19))[: 20 << 10]))
    slowly = add_prefix(bytes(99))
    for at in range(11):
        server.send(data(1, slowly[at : at + 1]))
        server.pass_s(1)
    assert list(statuses(server.read())) == [b"4"]
    server.pass_s(18)
    assert not server.read()
    server.pass_s(2)
    assert list(statuses(server.read())) == [b"4"]
    assert not server.connection.http.streams


async def test_a_frame_that_drips_ends_the_connection(server: PuppetServer) -> None:
    """So does a head that is never whole."""
    for _ in range(80):
        server.send(frame(Kind.DATA, 0, 1, bytes(200))[:1] if server.now_s == 0 else b"\0")
        server.pass_s(1)
    assert server.transport.end == "closed"


async def test_an_answer_that_is_not_read_is_cancelled(server: PuppetServer) -> None:
    """Where the peer gives no room, the stream; where its socket takes nothing, the connection."""
    server.send(settings({4: 0}), headers(1, call(LIVE)), data(1, add_prefix(b""), ends=True))  # type: ignore[dict-item]
    await turns()
    for _ in range(74):
        server.send(window_update(0, 1))
        server.pass_s(1)
    assert server.connection.http.streams
    for _ in range(4):
        server.send(window_update(0, 1))
        server.pass_s(1)
    assert not server.connection.http.streams
    assert (Kind.RST_STREAM, 0, 1, ErrorCode.CANCEL.to_bytes(4)) in server.read()
    server.transport.unread_bytes = 100
    for _ in range(77):
        server.send(window_update(0, 1))
        server.pass_s(1)
    assert server.transport.end == "aborted"


async def test_a_full_socket_gets_no_more_bytes(server: PuppetServer) -> None:
    """Answers wait on their streams, of which there are so many; then no more are begun."""
    server.connection.pause_writing()
    for number in range(1, 1001, 2):
        server.send(headers(number, call("/none"), END_STREAM))
    frames = server.read()
    assert {kind for kind, *_ in frames} == {Kind.RST_STREAM}
    assert len(frames) == 500 - 256
    server.connection.resume_writing()
    assert len(list(statuses(server.read()))) == 256


async def test_a_connection_at_its_age_gets_a_goaway() -> None:
    """They are closed when their calls have been answered."""
    made = PuppetServer(retires_s=5)
    made.send(PREFACE, settings({}))
    made.pass_s(4)
    assert not made.goaways()
    made.pass_s(1)
    assert made.goaways() == [b""]


async def test_flooded_connections_take_turns() -> None:
    """Each turn of the loop resumes one of them, so that others wait for one portion only."""
    server = GrpcServer(
        Gateway(ModelDirectory({}), metric_memory()), "127.0.0.1:0", max_message_bytes=1 << 20
    )
    floods, transports = [], []
    for _ in range(3):
        connection, transport = GrpcConnection(server, handed_over=True), PuppetTransport()
        connection.connection_made(transport)
        connection.data_received(PREFACE + settings({}))
        floods.append(connection)
        transports.append(transport)
    sent = b"".join(headers(number, call("/no/method"), END_STREAM) for number in range(1, 4001, 2))
    for connection in floods:
        connection.data_received(sent)
    assert not any(transport.reads for transport in transports)
    begun = [connection.calls for connection in floods]
    most = begun[0]
    assert 0 < most < 500
    while any(connection.http.more for connection in floods):
        await turns(1)
        now = [connection.calls for connection in floods]
        assert sum(now) - sum(begun) <= most
        assert max(now) - min(now) <= most
        begun = now
    assert begun == [2000, 2000, 2000]
    assert all(transport.reads for transport in transports)
    for transport in transports:
        written = list(frames_of(bytes(transport.written)))
        assert list(statuses(written)) == [b"12"] * 2000
    await server.stop(0)


async def test_a_flooded_connection_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the calls of one connection leaves no other one unread."""
    server = GrpcServer(
        Gateway(ModelDirectory({}), metric_memory()), "127.0.0.1:0", max_message_bytes=1 << 20
    )
    sent = b"".join(headers(number, call("/no/method"), END_STREAM) for number in range(1, 1001, 2))
    connections, transports = (
        [GrpcConnection(server, handed_over=True) for _ in range(2)],
        [PuppetTransport(), PuppetTransport()],
    )
    for connection, transport in zip(connections, transports, strict=True):
        connection.connection_made(transport)
        connection.data_received(PREFACE + settings({}) + sent)
    monkeypatch.setattr(connections[0], "flush", lambda: 1 // 0)
    for _ in range(20):
        await turns(1)
    assert transports[0].end == "aborted"
    assert (connections[1].calls, transports[1].reads) == (500, True)
    connections[0].connection_lost(None)
    await server.stop(0)


async def test_a_flooded_connection_that_is_lost_is_read_no_more(server: PuppetServer) -> None:
    """The rest of its bytes is dropped."""
    left: list[GrpcConnection] = []
    server.resume_soon = left.append  # type: ignore[method-assign]
    server.send(*[headers(number, call("/no/method"), END_STREAM) for number in range(1, 4001, 2)])
    assert left == [server.connection]
    begun = server.connection.calls
    server.connection.connection_lost(None)
    assert not server.connection.resume()
    assert server.connection.calls == begun
