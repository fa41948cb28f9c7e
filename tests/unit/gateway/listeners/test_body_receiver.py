"""Long bodies that are received straight into their memory."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.gateway.listeners.body_receiver import STRAIGHT_BODY_BYTES, BodyReceiver, allocate_body


class PuppetTransport:
    """A transport that knows its protocol, and counts the starts of reading.

    As uvloop's it takes the protocol's way of reading when it starts, and starts only what does not read.
    """

    def __init__(self) -> None:
        self.protocol: object = None
        self.reads = True
        self.starts = 0

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True
        self.starts += 1


class PuppetConnection:
    """A connection whose requests are announced by `begin`; records its calls."""

    def __init__(self, room_bytes: int = 1 << 40) -> None:
        self.transport = PuppetTransport()
        self.in_head = False
        self.bodies: list[bytes] = []
        self.heads = b""
        self.grown_bytes = 0
        self.lost = False
        self.gathered = io.BytesIO()
        self.on_head: Callable[[bytes], None] = lambda _: None
        self._room_bytes = room_bytes
        self.receiver = BodyReceiver(self)  # type: ignore[arg-type]  # its transport is a puppet

    def begin(self, length: int, beginning: bytes = b"") -> None:
        self.gathered = allocate_body(length)
        self.gathered.write(beginning)
        self.receiver.receive(self.gathered)

    def data_received(self, data: bytes) -> None:
        self.heads += data
        self.on_head(data)

    def body_grew(self, more_bytes: int) -> bool:
        self.grown_bytes += more_bytes
        return self.grown_bytes <= self._room_bytes

    def on_message_complete(self) -> None:
        self.bodies.append(self.gathered.getvalue())

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


def arrive(connection: PuppetConnection, data: bytes | memoryview, most_bytes: int = 1 << 30) -> None:
    """Let the loop read the arrived bytes, as uvloop does: it holds the memory during the call."""
    data = memoryview(data)
    while data:
        memory = connection.receiver.get_buffer(-1)
        size = min(len(memory), len(data), most_bytes)
        assert size, "an empty buffer ends the connection"
        with memoryview(memory) as held:
            held[:size] = data[:size]
            connection.receiver.buffer_updated(size)
        # As little as the loop.
        del memory
        data = data[size:]


def pattern(length: int) -> bytes:
    """Bytes that tell where they stand."""
    return np.arange(length // 4 + 1, dtype="<u4").tobytes()[:length]


async def turn() -> None:
    """Do the work that was left for the end of the loop's turn."""
    await asyncio.sleep(0)


pytestmark = pytest.mark.anyio


@settings(max_examples=40)
@given(
    length=st.integers(STRAIGHT_BODY_BYTES, 8 * STRAIGHT_BODY_BYTES + 17),
    beginning_bytes=st.integers(0, STRAIGHT_BODY_BYTES - 1),
    most_bytes=st.integers(30_000, 3 * STRAIGHT_BODY_BYTES),
)
def test_a_body_in_any_pieces_is_received_whole(length: int, beginning_bytes: int, most_bytes: int) -> None:
    """The bytes that came with the head and those that the loop writes are the body."""

    async def check() -> None:
        connection, body = PuppetConnection(), pattern(length)
        connection.begin(length, body[:beginning_bytes])
        arrive(connection, body[beginning_bytes:], most_bytes)
        await turn()
        assert connection.bodies == [body]
        assert connection.grown_bytes == length - beginning_bytes
        assert not connection.heads

    asyncio.run(check())


async def test_bytes_behind_a_body_belong_to_the_next_head() -> None:
    """The loop reads only the missing bytes of a body; the following ones are the next request's head."""
    connection, body = PuppetConnection(), pattern(STRAIGHT_BODY_BYTES)
    connection.begin(len(body))
    arrive(connection, body + b"GET / HTTP/1.1\r\n")

    assert connection.bodies == [body]
    assert connection.heads == b"GET / HTTP/1.1\r\n"


async def test_a_body_that_nothing_follows_is_handed_over_in_the_same_turn() -> None:
    """The loop may ask for no more memory, as it does after many reads; the request is not left behind."""
    connection, body = PuppetConnection(), pattern(STRAIGHT_BODY_BYTES)
    connection.begin(len(body))
    arrive(connection, body)
    assert not connection.bodies
    await turn()
    assert connection.bodies == [body]
    await turn()
    assert connection.bodies == [body]


async def test_complete_body_is_not_copied() -> None:
    """The bytes that are handed over lie where the loop has written them."""
    connection, body = PuppetConnection(), pattern(STRAIGHT_BODY_BYTES)
    connection.begin(len(body))
    memory = connection.receiver.get_buffer(-1)
    place = np.frombuffer(memory, np.uint8).ctypes.data
    del memory
    arrive(connection, body)
    await turn()
    assert np.frombuffer(connection.bodies[0], np.uint8).ctypes.data == place


async def test_a_body_without_room_is_received_no_further() -> None:
    """Once its connection has refused it, none of its arrived bytes is taken."""
    connection, body = PuppetConnection(room_bytes=100_000), pattern(STRAIGHT_BODY_BYTES)
    connection.begin(len(body))
    arrive(connection, body[:100_000])
    assert len(connection.receiver.get_buffer(-1)) == len(body) - 100_000
    arrive(connection, body[100_000:100_001])
    arrive(connection, body[100_001:])
    await turn()
    assert not connection.bodies


async def test_a_shorter_request_takes_the_transport_back() -> None:
    """The receiver stays while the next head is not complete, or announces a long body; else the connection reads."""
    connection, body = PuppetConnection(), pattern(STRAIGHT_BODY_BYTES)
    connection.begin(len(body))
    assert connection.transport.protocol is connection.receiver
    arrive(connection, body)

    connection.in_head = True
    arrive(connection, b"POST /sc")
    assert connection.transport.protocol is connection.receiver
    connection.in_head = False
    connection.on_head = lambda _: connection.begin(len(body))
    arrive(connection, b"ore HTTP/1.1\r\n\r\n")
    assert connection.transport.protocol is connection.receiver
    assert connection.transport.starts == 1
    arrive(connection, body)

    connection.on_head = lambda _: None
    arrive(connection, b"GET / HTTP/1.1\r\n\r\n")
    assert connection.transport.protocol is connection
    assert connection.transport.starts == 2
    assert connection.bodies == [body, body]


async def test_a_body_of_a_lost_connection_is_dropped() -> None:
    """The arrived part is not scored."""
    connection = PuppetConnection()
    connection.begin(STRAIGHT_BODY_BYTES)
    arrive(connection, b"x" * 1000)
    connection.receiver.connection_lost(None)
    await turn()

    assert connection.lost
    assert not connection.bodies
