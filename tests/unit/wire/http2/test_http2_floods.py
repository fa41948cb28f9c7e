"""Floods over HTTP/2: frames that cost a server more than their client."""

from __future__ import annotations

import struct

import pytest
from tests.unit.wire.http2.talk import GET, HEAD_BLOCK, Talk, data, headers

from stoker.wire.http2.fields import encoded
from stoker.wire.http2.frames import (
    END_STREAM,
    HEAD,
    HEAD_WORK,
    MAX_STREAMS,
    PATIENCE,
    RESETS,
    TURN_WORK,
    WORK_BYTES,
    ErrorCode,
    Kind,
    frame,
    rst_stream,
    settings,
    window_update,
)


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
    """Frames without effect use up a tolerance, which periodic upkeep restores."""
    talk = Talk(INITIAL_WINDOW_SIZE=100)
    talk.begin().stream.ended = flood == headers(1, encoded([(b"x", b"1")]), END_STREAM)
    before = talk.http.tolerance.patience
    for _ in range(PATIENCE + 10):
        talk.send(flood)
    assert before <= PATIENCE
    assert ("GOAWAY", ErrorCode.ENHANCE_YOUR_CALM) in talk.codes()


def test_requests_that_are_reset_at_once_end_the_connection() -> None:
    """A reset request costs more than an awaited one, so only answers earn further resets."""
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
    """Each stream is refused before its reset is read; the connection ends as without refusals."""
    talk = Talk()
    for number in range(1, 4 * RESETS, 2):
        kept = talk.begin(number, ends=True)
        kept.http.end_answer(kept.stream, encoded([(b":status", b"200"), (b"grpc-status", b"12")]))
        talk.send(rst_stream(number, ErrorCode.CANCEL))
        if talk.http.failed:
            break
    assert talk.codes() == [("GOAWAY", ErrorCode.ENHANCE_YOUR_CALM)]
    assert number == 2 * RESETS + 1


def test_client_with_short_deadlines_keeps_its_connection() -> None:
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
    """A thousand streams, each with these frames behind its head."""
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
    """Other connections have turns in between, and all of it is read in its order."""
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


def test_last_of_repeated_settings_counts() -> None:
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


def test_windows_of_single_bytes_end_the_connection() -> None:
    """Otherwise each byte of an answer could cost a frame."""
    talk = Talk(INITIAL_WINDOW_SIZE=0)
    kept = talk.begin()
    kept.http.begin_answer(kept.stream, HEAD_BLOCK)
    kept.http.send(kept.stream, bytes(2 * PATIENCE))
    for _ in range(PATIENCE + 10):
        talk.send(window_update(1, 1))
    assert ("GOAWAY", ErrorCode.ENHANCE_YOUR_CALM) in talk.codes()
