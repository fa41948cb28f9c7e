"""A connection whose requests are kept, and a client that writes and reads its frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hpack import Decoder, Encoder

from stoker.wire.http2.connection import Connection
from stoker.wire.http2.fields import Fields, encoded
from stoker.wire.http2.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD,
    PREFACE,
    ErrorCode,
    Kind,
    Setting,
    frame,
    settings,
)
from stoker.wire.http2.streams import Stream

REQUEST: Fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/M"), (b"te", b"trailers")]
HEAD_BLOCK = b"\x88"
OK = encoded([(b"grpc-status", b"0")])
GET = encoded(REQUEST)


@dataclass
class Head:
    """The fields of a request, as they are."""

    fields: Fields

    @property
    def content_bytes(self) -> int | None:
        for name, value in self.fields:
            if name == b"content-length":
                return int(value)
        return None


@dataclass
class Kept:
    """Keeps the received content; answers when a test calls it, or at once with an echo.

    Attributes:
        echoes: Whether it answers as soon as the request has ended.
    """

    http: Connection[Head]
    stream: Stream
    head: Head
    echoes: bool = False
    content: bytearray = field(default_factory=bytearray)
    ended: bool = False
    gone: bool = False
    drains: int = 0

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        assert not self.gone
        assert not self.ended
        self.content += part
        if ended:
            self.end()

    def end(self) -> None:
        assert not self.ended
        self.ended = True
        if self.echoes:
            self.answer(bytes(self.content))

    def lost(self) -> None:
        assert not self.gone
        self.gone = True

    def drained(self) -> None:
        self.drains += 1

    def answer(self, content: bytes) -> None:
        self.http.answer(self.stream, HEAD_BLOCK, content, OK)


class Talk:
    """Both ends of a connection; its greeting has been read, and the client's too if it `greets`."""

    def __init__(self, *, greets: bool = True, echoes: bool = False, **options: int) -> None:
        self.requests: dict[int, Kept] = {}
        self.echoes = echoes
        self.http: Connection[Head] = Connection(Head, self._begin)
        self.encoder, self.decoder = Encoder(), Decoder()
        self.greeting = self.read()
        if greets:
            self.send(PREFACE + settings({Setting[name]: value for name, value in options.items()}))
            assert self.read() == [(Kind.SETTINGS, 1, 0, b"")]

    def _begin(self, stream: Stream, head: Head) -> Kept:
        self.requests[stream.number] = Kept(self.http, stream, head, self.echoes)
        return self.requests[stream.number]

    def send(self, data: bytes) -> None:
        self.http.receive(data)
        while self.http.more:
            self.http.receive(b"")

    def read(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that the server has sent since the last look: kind, flags, stream, payload."""
        data = b"".join(self.http.out)
        self.http.out.clear()
        return list(frames_of(data))

    def block(self, fields: Any = REQUEST) -> bytes:
        """The fields of a request by the client's table."""
        return self.encoder.encode(fields, huffman=True)

    def begin(self, number: int = 1, *, ends: bool = False, fields: Any = REQUEST) -> Kept:
        """Begin a request."""
        self.send(headers(number, self.block(fields), END_STREAM if ends else 0))
        return self.requests[number]

    def codes(self) -> list[tuple[str, ErrorCode]]:
        """How the server ends streams and the connection, and why."""
        return [
            (
                Kind(kind).name,
                ErrorCode(int.from_bytes(payload[-4:] if kind == Kind.RST_STREAM else payload[4:8])),
            )
            for kind, _, _, payload in self.read()
            if kind in (Kind.RST_STREAM, Kind.GOAWAY)
        ]


def frames_of(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Take frames apart; all of them have to be whole."""
    while data:
        size_kind, flags, number = HEAD.unpack_from(data)
        stop = HEAD.size + (size_kind >> 8)
        assert stop <= len(data), "half a frame"
        yield size_kind & 0xFF, flags, number, data[HEAD.size : stop]
        data = data[stop:]


def headers(number: int, block: bytes, flags: int = 0) -> bytes:
    """A HEADERS frame with a whole block."""
    return frame(Kind.HEADERS, flags | END_HEADERS, number, block)


def data(number: int, content: bytes, *, ends: bool = False) -> bytes:
    """A DATA frame."""
    return frame(Kind.DATA, END_STREAM if ends else 0, number, content)


def sizes(talk: Talk, kind: Kind = Kind.DATA) -> list[int]:
    """The lengths of the frames of a kind that the server has sent."""
    return [len(payload) for found, _, _, payload in talk.read() if found == kind]
