"""Connections of HTTP/2 as a server has them: requests, answers, their end."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.http2.talk import GET, HEAD_BLOCK, OK, REQUEST, Talk, data, headers, sizes

from stoker.wire.http2.fields import encoded
from stoker.wire.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    LARGEST_STREAM,
    PREFACE,
    ErrorCode,
    Kind,
    frame,
    rst_stream,
    settings,
)
from stoker.wire.http2.streams import NOBODY

KIB = 1 << 10


def test_a_request_is_answered() -> None:
    """With a head, its content, and the fields that end it; nothing of it is left."""
    talk = Talk()
    kept = talk.begin()
    talk.send(data(1, b"abc") + data(1, b"def", ends=True))
    assert (kept.head.fields, bytes(kept.content), kept.ended) == (REQUEST, b"abcdef", True)
    kept.answer(b"answer")
    assert talk.read() == [
        (Kind.HEADERS, END_HEADERS, 1, HEAD_BLOCK),
        (Kind.DATA, 0, 1, b"answer"),
        (Kind.HEADERS, END_HEADERS | END_STREAM, 1, OK),
    ]
    assert not talk.http.streams
    assert kept.stream.receiver is NOBODY


def test_head_alone_does_not_notify_that_all_was_sent() -> None:
    """A notified stream may end its answer, so the notice comes only after content."""
    talk = Talk()
    kept = talk.begin(ends=True)
    kept.stream.notifies_drained = True
    talk.http.begin_answer(kept.stream, HEAD_BLOCK)
    assert kept.drains == 0
    talk.http.send(kept.stream, b"answer")
    assert kept.drains == 1
    talk.http.end_answer(kept.stream, OK)
    assert [kind for kind, *_ in talk.read()] == [Kind.HEADERS, Kind.DATA, Kind.HEADERS]


@given(st.data())
def test_it_does_not_matter_how_bytes_arrive(draw: st.DataObject) -> None:
    """In one piece or in many, the same requests are received and the same is sent."""
    whole = Talk(greets=False, echoes=True)
    sent = PREFACE + settings({})
    for number in (1, 3, 5):
        sent += headers(number, whole.block([*REQUEST, (b"n", b"%d" % number)]))
        sent += data(number, b"x" * draw.draw(st.integers(0, 300))) + data(number, b"end", ends=True)
    whole.send(sent)
    pieces = Talk(greets=False, echoes=True)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(sent)), max_size=30)))
    for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        pieces.send(sent[start:stop])
    assert pieces.read() == whole.read()
    assert {n: k.content for n, k in pieces.requests.items()} == {
        n: k.content for n, k in whole.requests.items()
    }


@given(
    st.lists(st.tuples(st.sampled_from("rdsphwcgu"), st.integers(0, 9), st.binary(max_size=40)), max_size=60)
)
def test_random_frames_cost_at_most_the_connection(frames: list[tuple[str, int, bytes]]) -> None:
    """The server sends whole frames, and receivers learn the end of their streams."""
    kinds = dict(zip("rdsphwcgu", (3, 0, 4, 6, 1, 8, 9, 7, 77), strict=True))
    talk = Talk(echoes=True)
    good = talk.block()
    for kind, number, payload in frames:
        content = good if kind == "h" and number % 2 else payload
        talk.send(frame(kinds[kind], payload[0] if payload else 0, number, content))  # type: ignore[arg-type]
    talk.read()
    for kept in talk.requests.values():
        assert (kept.stream.receiver is kept) is (kept.stream.number in talk.http.streams)
    talk.http.lose()
    assert not talk.http.streams


@given(st.binary(max_size=400))
def test_bytes_that_are_nothing_end_the_connection_or_wait(content: bytes) -> None:
    """They raise nothing."""
    talk = Talk()
    talk.send(content)
    assert talk.http.failed or talk.http.arriving or not content


def test_heads_that_repeat_are_known_until_the_table_changes() -> None:
    """The same bytes then mean something else."""
    talk = Talk()
    newest = encoded(REQUEST) + b"\xbe"
    talk.send(headers(1, encoded(REQUEST) + b"\x40\x01x\x05first"))
    talk.send(headers(3, newest) + headers(5, newest))
    assert talk.requests[5].head is talk.requests[3].head
    assert talk.requests[5].head.fields == [*REQUEST, (b"x", b"first")]
    talk.send(headers(7, encoded(REQUEST) + b"\x40\x01x\x05other"))
    talk.send(headers(9, newest))
    assert talk.requests[9].head.fields[-1] == (b"x", b"other")


def test_long_blocks_are_continued() -> None:
    """Over several frames, between which nothing else comes."""
    talk = Talk()
    fields = [*REQUEST, *((b"x-%d" % number, b"v" * 500) for number in range(20))]
    block = encoded(fields)
    talk.send(frame(Kind.HEADERS, END_STREAM, 1, block[:10]) + frame(Kind.CONTINUATION, 0, 1, block[10:5000]))
    talk.send(frame(Kind.CONTINUATION, END_HEADERS, 1, block[5000:]))
    assert talk.requests[1].head.fields == fields
    assert talk.requests[1].ended


def test_padding_and_priorities_are_left_out() -> None:
    """They count for the windows, and mean nothing."""
    talk = Talk()
    padded = bytes([3]) + struct.pack(">IB", 0, 16) + talk.block() + bytes(3)
    talk.send(frame(Kind.HEADERS, END_HEADERS | 0x8 | 0x20, 1, padded))
    talk.send(frame(Kind.DATA, END_STREAM | 0x8, 1, bytes([5]) + b"abc" + bytes(5)))
    assert talk.requests[1].head.fields == REQUEST
    assert talk.requests[1].content == b"abc"


def test_fields_behind_the_content_end_a_request() -> None:
    """They are read, as the table may change with them, and overlooked."""
    talk = Talk()
    kept = talk.begin()
    talk.send(data(1, b"abc") + headers(1, talk.block([(b"x-checksum", b"1")]), END_STREAM))
    assert kept.ended
    assert talk.begin(3, fields=[*REQUEST, (b"x-checksum", b"1")]).head.fields[-1] == (b"x-checksum", b"1")


def test_an_answer_before_the_end_of_its_request_stops_the_request() -> None:
    """Content and fields already on their way are no fault."""
    talk = Talk()
    kept = talk.begin()
    talk.http.end_answer(kept.stream, HEAD_BLOCK)
    assert talk.codes() == [("RST_STREAM", ErrorCode.NO_ERROR)]
    talk.send(
        data(1, bytes(KIB)) + headers(1, talk.block([(b"x-late", b"1")]), END_STREAM) + data(1, b"more")
    )
    assert not talk.codes()
    assert talk.begin(3, fields=[*REQUEST, (b"x-late", b"1")]).head.fields[-1] == (b"x-late", b"1")


def test_a_connection_that_drains_loses_nothing() -> None:
    """Requests sent before the client read GOAWAY are answered; a second GOAWAY names the last one."""
    talk = Talk()
    first = talk.begin(1, ends=True)
    settled = []
    talk.http.on_settled = lambda: settled.append(True)
    talk.http.drain()
    talk.http.drain()
    (goaway, ping) = talk.read()
    assert goaway[3][:8] == struct.pack(">II", LARGEST_STREAM, 0)
    late = talk.begin(3, ends=True)
    talk.send(frame(Kind.PING, ACK, 0, b"anything"))
    assert not settled
    talk.send(frame(Kind.PING, ACK, 0, ping[3]))
    assert settled == [True]
    assert [payload[:8] for *_, payload in talk.read()] == [struct.pack(">II", 3, 0)]
    talk.send(headers(5, GET, END_STREAM))
    assert talk.codes() == [("RST_STREAM", ErrorCode.REFUSED_STREAM)]
    first.answer(b"1")
    late.answer(b"2")
    assert sizes(talk) == [1, 1]


def test_a_client_takes_a_request_back() -> None:
    """Its receiver learns it, and its answer is dropped."""
    talk = Talk()
    kept = talk.begin(ends=True)
    talk.send(rst_stream(1, ErrorCode.CANCEL))
    assert kept.gone
    kept.answer(b"late")
    assert not talk.read()
    assert not talk.http.failed
