"""Flow control of HTTP/2: answers wait for windows, and requests get them."""

from __future__ import annotations

import struct

from tests.unit.wire.http2.talk import HEAD_BLOCK, REQUEST, Talk, data, headers, sizes

from stoker.wire.http2.fields import encoded
from stoker.wire.http2.frames import (
    MAX_STREAMS,
    STREAM_WINDOW_BYTES,
    ErrorCode,
    Kind,
    Setting,
    settings,
    window_update,
)

KIB = 1 << 10
WINDOW_BYTES = 65535


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


def test_one_write_is_bounded() -> None:
    """The rest of the queue follows when the socket has taken it."""
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
    drains = kept.drains
    talk.http.send(kept.stream, bytes(15))
    assert (kept.drains, kept.stream.queued_bytes) == (drains, 5)
    talk.send(window_update(1, 10))
    assert (kept.drains, kept.stream.queued_bytes) == (drains + 1, 0)


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
