"""Faults of clients of HTTP/2: they end the connection or a stream."""

from __future__ import annotations

import pytest
from tests.unit.wire.http2.talk import GET, REQUEST, Talk, data, headers

from stoker.wire.http2.fields import encoded
from stoker.wire.http2.frames import (
    END_STREAM,
    LARGEST_STREAM,
    PREFACE,
    ErrorCode,
    Kind,
    Setting,
    frame,
    settings,
    window_update,
)

BIG = encoded([*REQUEST, (b"x", b"v" * 20_000)])
BOMB = encoded(REQUEST) + b"\x40\x01a\x7f\x99\x1e" + b"v" * 3992 + b"\xbe" * 20


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (headers(1, BIG), ErrorCode.ENHANCE_YOUR_CALM),
        (headers(1, BOMB), ErrorCode.ENHANCE_YOUR_CALM),
        (headers(1, b"\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (
            frame(Kind.HEADERS, 0, 1, GET) + frame(Kind.CONTINUATION, 0, 1, b"") * 17,
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
        (frame(Kind.HEADERS, 0, 1, GET) + frame(Kind.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.CONTINUATION, 4, 1, GET), ErrorCode.PROTOCOL_ERROR),
        (data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (headers(2, GET), ErrorCode.PROTOCOL_ERROR),
        (headers(5, GET) + headers(3, GET), ErrorCode.PROTOCOL_ERROR),
        (headers(0, GET), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.DATA, 0, 1, bytes(1 << 17)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Kind.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Kind.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Kind.SETTINGS, 0, 0, bytes(6 * 65)), ErrorCode.ENHANCE_YOUR_CALM),
        (settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update(0, LARGEST_STREAM), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.PUSH_PROMISE, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.DATA, 0x8, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_faults_of_a_connection_end_it(sent: bytes, code: ErrorCode) -> None:
    """GOAWAY has the reason; receivers of its requests learn the end, and nothing more is read."""
    talk = Talk()
    talk.send(sent)
    assert ("GOAWAY", code) in talk.codes()
    assert talk.http.failed
    assert all(kept.gone for kept in talk.requests.values())
    talk.send(headers(7, GET))
    assert not talk.read()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (window_update(1, LARGEST_STREAM), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (headers(1, encoded([(b"x", b"1")])), ErrorCode.PROTOCOL_ERROR),
        (headers(1, encoded([(b":path", b"1")]), END_STREAM), ErrorCode.PROTOCOL_ERROR),
        (data(1, b"", ends=True) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (data(1, b"", ends=True) + headers(1, GET, END_STREAM), ErrorCode.STREAM_CLOSED),
    ],
)
def test_faults_of_a_stream_end_that_alone(sent: bytes, code: ErrorCode) -> None:
    """Its receiver learns it; the others go on."""
    talk = Talk()
    faulty, other = talk.begin(1), talk.begin(3)
    talk.send(sent)
    assert talk.codes() == [("RST_STREAM", code)]
    assert faulty.gone
    talk.send(data(3, b"x", ends=True))
    assert other.ended


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[1:],
        [*REQUEST, (b":path", b"/again")],
        [REQUEST[3], *REQUEST[:3]],
        [*REQUEST, (b"Upper", b"1")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"te", b"gzip")],
        [*REQUEST, (b"x", b"a\r\nb")],
        [*REQUEST, (b"", b"1")],
        [*REQUEST[:2], (b":path", b"")],
        [*REQUEST, (b":protocol", b"x")],
        [*REQUEST[:2], (b":path", b" /s/M")],
    ],
)
def test_malformed_requests_are_not_begun(fields: list[tuple[bytes, bytes]]) -> None:
    """Each is a fault of its stream."""
    talk = Talk()
    talk.send(headers(1, encoded(fields)))
    assert talk.codes() == [("RST_STREAM", ErrorCode.PROTOCOL_ERROR)]
    assert not talk.requests
    assert talk.begin(3)


@pytest.mark.parametrize("value", [b"", b" ", b"\t ", b" a ", b"a b ", b"\xff\xfe", b"a" * 5000])
def test_a_value_may_be_odd(value: bytes) -> None:
    """Its reader judges it, without the space around it."""
    talk = Talk()
    kept = talk.begin(fields=[*REQUEST, (b"authorization", value)])
    assert kept.head.fields[-1] == (b"authorization", value.strip())
    assert not talk.codes()


@pytest.mark.parametrize("content", [b"", b"abc", b"abcdef"])
def test_content_is_as_long_as_its_length_says(content: bytes) -> None:
    """Neither longer nor shorter."""
    talk = Talk()
    kept = talk.begin(fields=[*REQUEST, (b"content-length", b"5")])
    talk.send(data(1, content, ends=True))
    assert talk.codes() == [("RST_STREAM", ErrorCode.PROTOCOL_ERROR)]
    assert kept.gone


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01"]
)
def test_bytes_that_are_no_http2_end_the_connection(sent: bytes) -> None:
    """The first byte that is no HTTP/2 is answered with GOAWAY."""
    talk = Talk(greets=False)
    talk.send(sent)
    assert talk.codes() == [("GOAWAY", ErrorCode.PROTOCOL_ERROR)]


def test_clients_begin_with_their_settings() -> None:
    """Nothing else comes first."""
    talk = Talk(greets=False)
    talk.send(PREFACE + frame(Kind.PING, 0, 0, bytes(8)))
    assert talk.codes() == [("GOAWAY", ErrorCode.PROTOCOL_ERROR)]
