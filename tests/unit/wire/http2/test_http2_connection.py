"""Connections of HTTP/2 as a server has them: what is received, what is sent, and what nobody may do."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.http2.talk import HEAD_BLOCK, OK, REQUEST, Talk, data, headers

from stoker.wire.http2.fields import encoded
from stoker.wire.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_WORK,
    LARGEST_STREAM,
    MAX_STREAMS,
    PATIENCE,
    PREFACE,
    RESETS,
    STREAM_WINDOW_BYTES,
    TURN_WORK,
    WORK_BYTES,
    ErrorCode,
    Kind,
    Setting,
    frame,
    rst_stream,
    settings,
    window_update,
)
from stoker.wire.http2.streams import NOBODY

KIB = 1 << 10
WINDOW_BYTES = 65535


def sizes(talk: Talk, kind: Kind = Kind.DATA) -> list[int]:
    """How long the frames of a kind are that the server has sent."""
    return [len(payload) for found, _, _, payload in talk.read() if found == kind]


# --- requests and answers ---


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


def test_a_head_alone_is_no_answer_that_was_taken() -> None:
    """Who is told that all was sent may end the answer, so it is told behind content."""
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
def test_whatever_is_sent_costs_no_more_than_the_connection(said: list[tuple[str, int, bytes]]) -> None:
    """Frames of every kind in any order and damaged: what is sent is whole frames, and receivers hear what holds."""
    kinds = dict(zip("rdsphwcgu", (3, 0, 4, 6, 1, 8, 9, 7, 77), strict=True))
    talk = Talk(echoes=True)
    good = talk.block()
    for kind, number, payload in said:
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
    """What was on its way meanwhile is no fault, the fields behind it neither."""
    talk = Talk()
    kept = talk.begin()
    talk.http.end_answer(kept.stream, HEAD_BLOCK)
    assert talk.codes() == [("RST_STREAM", ErrorCode.NO_ERROR)]
    talk.send(
        data(1, bytes(KIB)) + headers(1, talk.block([(b"x-late", b"1")]), END_STREAM) + data(1, b"more")
    )
    assert not talk.codes()
    assert talk.begin(3, fields=[*REQUEST, (b"x-late", b"1")]).head.fields[-1] == (b"x-late", b"1")


# --- what is sent, as far as it is taken ---


def test_answers_wait_for_windows() -> None:
    """Of their stream and of the connection; smaller frames than the client takes are not made."""
    talk = Talk(INITIAL_WINDOW_SIZE=20 * KIB)
    kept = talk.begin(ends=True)
    kept.answer(bytes(100 * KIB))
    assert sizes(talk) == [16 * KIB, 4 * KIB]
    talk.send(window_update(1, 100 * KIB))
    assert sum(sizes(talk)) == WINDOW_BYTES - 20 * KIB
    talk.send(window_update(0, 100 * KIB))
    assert sum(sizes(talk)) == 100 * KIB - WINDOW_BYTES
    assert not talk.http.streams


def test_streams_have_turns() -> None:
    """A long answer does not keep a short one waiting that came later."""
    talk = Talk(INITIAL_WINDOW_SIZE=1 << 20)
    talk.send(window_update(0, 1 << 20))
    long, short = talk.begin(1, ends=True), talk.begin(3, ends=True)
    talk.http.writable = False
    long.answer(bytes(200 * KIB))
    short.answer(bytes(10))
    assert not talk.read()
    talk.http.writable = True
    talk.http.pump()
    order = [(number, len(payload)) for kind, _, number, payload in talk.read() if kind == Kind.DATA]
    assert order.index((3, 10)) == 1


def test_one_write_has_a_bounded_part_of_what_waits() -> None:
    """The rest goes when the socket has taken that."""
    talk = Talk(INITIAL_WINDOW_SIZE=1 << 22)
    talk.send(window_update(0, 1 << 22))
    talk.begin(ends=True).answer(bytes(1 << 20))
    first = sum(sizes(talk))
    assert first <= 1 << 19
    talk.http.pump()
    assert sum(sizes(talk)) <= first
    assert talk.http.sending


def test_windows_that_shrink_may_become_negative() -> None:
    """Then nothing is sent until they are positive again."""
    talk = Talk()
    kept = talk.begin(ends=True)
    kept.answer(bytes(WINDOW_BYTES + 10))
    talk.send(window_update(0, 1 << 20))
    talk.read()
    talk.send(settings({Setting.INITIAL_WINDOW_SIZE: 100}))
    assert not sizes(talk)
    talk.send(window_update(1, WINDOW_BYTES - 100))
    assert not sizes(talk)
    talk.send(window_update(1, 4))
    assert sizes(talk) == [4]


def test_stream_that_asks_is_notified_when_its_data_is_sent() -> None:
    """A stream with `notifies_drained` is notified once its queue is empty."""
    talk = Talk(INITIAL_WINDOW_SIZE=10)
    kept = talk.begin()
    kept.stream.notifies_drained = True
    talk.http.begin_answer(kept.stream, HEAD_BLOCK)
    told = kept.drains
    talk.http.send(kept.stream, bytes(15))
    assert (kept.drains, kept.stream.queued_bytes) == (told, 5)
    talk.send(window_update(1, 10))
    assert (kept.drains, kept.stream.queued_bytes) == (told + 1, 0)


# --- what is received, as far as there is room ---


def test_room_is_given_as_content_is_taken() -> None:
    """On the stream and on the connection, in large portions."""
    talk = Talk()
    talk.begin()
    for _ in range(100):
        talk.send(data(1, bytes(60_000)))
    given = [
        (n, int.from_bytes(payload)) for kind, _, n, payload in talk.read() if kind == Kind.WINDOW_UPDATE
    ]
    for number in (0, 1):
        assert 100 * 60_000 - (1 << 21) < sum(size for n, size in given if n == number) <= 100 * 60_000
    assert len(given) < 20


def test_a_stream_that_is_held_is_given_none() -> None:
    """It may be sent so much as was promised; more is a fault of its own, and of no other."""
    talk = Talk()
    held, other = talk.begin(1), talk.begin(3)
    held.stream.held = True
    for _ in range(STREAM_WINDOW_BYTES >> 16):
        talk.send(data(1, bytes(1 << 16)))
    assert all(number == 0 for _, _, number, _ in talk.read())
    talk.http.release(held.stream)
    assert talk.read() == [(Kind.WINDOW_UPDATE, 0, 1, struct.pack(">I", STREAM_WINDOW_BYTES))]
    held.stream.held = True
    for _ in range((STREAM_WINDOW_BYTES >> 16) + 1):
        talk.send(data(1, bytes(1 << 16)))
    assert talk.codes() == [("RST_STREAM", ErrorCode.FLOW_CONTROL_ERROR)]
    assert (held.gone, other.gone) == (True, False)


def test_streams_above_the_limit_are_refused() -> None:
    """Nothing is begun for them, and the others go on."""
    talk = Talk()
    block = encoded(REQUEST)
    talk.send(b"".join(headers(2 * number + 1, block) for number in range(MAX_STREAMS + 2)))
    assert talk.codes() == [("RST_STREAM", ErrorCode.REFUSED_STREAM)] * 2
    assert len(talk.requests) == MAX_STREAMS
    assert not talk.http.failed


# --- faults ---

GET = encoded(REQUEST)
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
    """With the reason; receivers of its requests are told, and nothing more is read."""
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
    """Its receiver is told; the others go on."""
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
    """Whoever reads it says what is wrong with it; space around it is not part of it."""
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
    "flood",
    [
        frame(Kind.PING, 0, 0, bytes(8)),
        settings({}),
        data(1, b""),
        data(1, b"x"),
        window_update(0, 1),
        window_update(1, 1),
        frame(Kind.PRIORITY, 0, 1, bytes(5)),
        frame(77, 0, 0, b""),  # type: ignore[arg-type]
        headers(1, encoded([(b"x", b"1")]), END_STREAM),
    ],
)
def test_floods_end_the_connection(flood: bytes) -> None:
    """Frames that move nothing are borne with for a while; looking after the connection gives that back."""
    talk = Talk(INITIAL_WINDOW_SIZE=100)
    talk.begin().stream.ended = flood == headers(1, encoded([(b"x", b"1")]), END_STREAM)
    before = talk.http.tolerance.patience
    for _ in range(PATIENCE + 10):
        talk.send(flood)
    assert before <= PATIENCE
    assert ("GOAWAY", ErrorCode.ENHANCE_YOUR_CALM) in talk.codes()


def test_requests_that_are_reset_at_once_end_the_connection() -> None:
    """Whoever takes each request back costs more than one who waits; answers earn it."""
    talk = Talk()
    number = 1
    while not talk.http.failed:
        talk.send(headers(number, GET, END_STREAM) + rst_stream(number, ErrorCode.CANCEL))
        number += 2
        assert number < 4 * PATIENCE
    assert all(kept.gone for kept in talk.requests.values())
    talk = Talk(echoes=True)
    for number in range(1, 8 * PATIENCE, 4):
        talk.send(headers(number, GET, END_STREAM))
        talk.send(headers(number + 2, GET) + rst_stream(number + 2, ErrorCode.CANCEL))
    assert not talk.http.failed


def test_refusals_do_not_pay_for_streams_that_are_reset() -> None:
    """Each stream is refused before its reset is read: the connection ends as if nothing had been said."""
    talk = Talk()
    for number in range(1, 4 * RESETS, 2):
        kept = talk.begin(number, ends=True)
        kept.http.end_answer(kept.stream, encoded([(b":status", b"200"), (b"grpc-status", b"12")]))
        talk.send(rst_stream(number, ErrorCode.CANCEL))
        if talk.http.failed:
            break
    assert talk.codes() == [("GOAWAY", ErrorCode.ENHANCE_YOUR_CALM)]
    assert number == 2 * RESETS + 1


def test_a_client_whose_deadlines_are_short_is_not_cut_off() -> None:
    """It may give up four requests for each that is answered with content, for ever, and a thousand more."""
    talk = Talk(echoes=True)
    numbers = iter(range(1, 1 << 20, 2))
    for _ in range(RESETS):
        talk.send(headers(next(numbers), GET, END_STREAM))
        for _ in range(4):
            number = next(numbers)
            talk.send(headers(number, GET) + rst_stream(number, ErrorCode.CANCEL))
    for _ in range(RESETS):
        number = next(numbers)
        talk.send(headers(number, GET) + rst_stream(number, ErrorCode.CANCEL))
    assert not talk.http.failed


def opened(*more: bytes) -> list[bytes]:
    """A thousand streams, each with something behind its head."""
    return [
        b"".join(
            (headers(number, GET), *(HEAD.pack(*HEAD.unpack(one[:9])[:2], number) + one[9:] for one in more))
        )
        for number in range(1, 2000, 2)
    ]


@pytest.mark.parametrize(
    ("flood", "most"),
    [
        (opened(rst_stream(1, ErrorCode.CANCEL)), TURN_WORK // (HEAD_WORK + 1)),
        (opened(rst_stream(1, ErrorCode.CANCEL), window_update(1, 1)), TURN_WORK // (HEAD_WORK + 2)),
        ([frame(Kind.PING, 0, 0, bytes(8))] * 3000, TURN_WORK),
        ([settings({})] * 3000, TURN_WORK),
        ([frame(Kind.SETTINGS, 0, 0, bytes(6 * 64))] * 500, TURN_WORK // (1 + 6 * 64 // WORK_BYTES)),
    ],
)
def test_a_flood_is_read_a_part_a_turn(flood: list[bytes], most: int) -> None:
    """What arrives at once is not read at once: all of it is, in its order, but others have turns between."""
    talk = Talk()
    talk.http.tolerance.patience = talk.http.tolerance.resets = 10_000

    def passed() -> int:
        return len(talk.requests) + len(talk.read())

    talk.http.receive(b"".join(flood))
    assert talk.http.more
    read = [passed()]
    while talk.http.more:
        before = len(talk.requests)
        talk.http.receive(b"")
        read.append(passed() - before)
    assert sum(read) == len(flood)
    assert max(read) <= most + 1
    assert not talk.http.failed


def test_requests_on_all_streams_are_read_in_one_turn() -> None:
    """Requests on all allowed streams are read together, so that they can share a batch."""
    talk = Talk()
    talk.http.receive(
        b"".join(headers(n, GET) + data(n, b"x", ends=True) for n in range(1, 2 * MAX_STREAMS, 2))
    )
    assert not talk.http.more
    assert len(talk.requests) == MAX_STREAMS


def test_of_settings_that_say_something_often_the_last_counts() -> None:
    """Each change of the windows costs as much as there are streams."""
    talk = Talk()
    kept = [talk.begin(number, ends=True) for number in (1, 3)]
    changes = []
    change = talk.http.set_stream_windows
    talk.http.set_stream_windows = lambda size: (changes.append(size), change(size))[1]  # type: ignore[method-assign]
    sizes = range(64)
    talk.send(frame(Kind.SETTINGS, 0, 0, b"".join(struct.pack(">HI", 4, size) for size in sizes)))
    assert changes == [sizes[-1]]
    assert [each.stream.window_bytes for each in kept] == [sizes[-1]] * 2


def test_a_stream_of_short_answers_goes_on_for_ever() -> None:
    """For each answer its client gives room back to the stream and to the connection, and asks how far it is."""
    talk = Talk()
    kept = talk.begin()
    kept.http.begin_answer(kept.stream, HEAD_BLOCK)
    for _ in range(PATIENCE):
        talk.send(data(1, bytes(40)))
        kept.http.send(kept.stream, bytes(40))
        talk.send(window_update(0, 40) + window_update(1, 40) + frame(Kind.PING, 0, 0, bytes(8)))
    assert not talk.http.failed


def test_an_answer_that_is_asked_for_byte_by_byte_ends_the_connection() -> None:
    """Otherwise each byte of it could cost a frame."""
    talk = Talk(INITIAL_WINDOW_SIZE=0)
    kept = talk.begin()
    kept.http.begin_answer(kept.stream, HEAD_BLOCK)
    kept.http.send(kept.stream, bytes(2 * PATIENCE))
    for _ in range(PATIENCE + 10):
        talk.send(window_update(1, 1))
    assert ("GOAWAY", ErrorCode.ENHANCE_YOUR_CALM) in talk.codes()


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


# --- the end ---


def test_a_connection_that_drains_loses_nothing() -> None:
    """What its client had sent before it has read of it is answered; then it is told what was the last."""
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
    """Its receiver is told, and what it answers goes nowhere."""
    talk = Talk()
    kept = talk.begin(ends=True)
    talk.send(rst_stream(1, ErrorCode.CANCEL))
    assert kept.gone
    kept.answer(b"late")
    assert not talk.read()
    assert not talk.http.failed
