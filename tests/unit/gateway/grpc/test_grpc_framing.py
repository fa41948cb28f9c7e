"""Messages within the content of a call, and the room that they take."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BodyTooLarge, MalformedBody, Overloaded, StokerError
from stoker.gateway.grpc.framing import Message, MessageBudget, MessageReader, add_prefix, inflate
from stoker.gateway.http.body_budget import BodyBudget

MIB = 1 << 20


def too_long(size: int, most: int) -> BodyTooLarge:
    return BodyTooLarge(f"{size} of {most}")


def reader(max_bytes: int = 8 * MIB, budget: BodyBudget | None = None) -> MessageReader:
    held = budget or BodyBudget()
    return MessageReader(max_bytes, too_long, MessageBudget(lambda: held, "10.0.0.1"))


@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.integers(0, 300), max_size=20))
def test_messages_are_found_however_they_arrive(messages: list[bytes], cuts: list[int]) -> None:
    """In pieces of any length, several in one too."""
    content = b"".join(map(add_prefix, messages))
    bounds = sorted({0, len(content), *(cut for cut in cuts if cut <= len(content))})
    taken = reader()
    found = [item for start, stop in pairwise(bounds) for item in taken.feed(content[start:stop])]
    assert [item.content for item in found if isinstance(item, Message)] == messages
    assert taken.is_idle


@pytest.mark.parametrize(
    ("content", "kind"), [(b"\0\0\0\0\x0b" + bytes(11), BodyTooLarge), (b"\2\0\0\0\1a", MalformedBody)]
)
def test_refused_message_is_skipped_and_the_next_one_read(content: bytes, kind: type[StokerError]) -> None:
    """A message is refused once its length is known; the next message is read."""
    taken = reader(10)
    (error,) = taken.feed(content[:5])
    assert isinstance(error, kind)
    (message,) = taken.feed(content[5:] + add_prefix(b"next"))
    assert isinstance(message, Message)
    assert message.content == b"next"


@pytest.mark.parametrize(("encoding", "squeeze"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages_are_bounded_by_their_inflated_size(encoding: bytes, squeeze: object) -> None:
    """And have to be what their encoding says."""
    assert callable(squeeze)
    assert inflate(squeeze(b"text"), encoding, 4, too_long) == b"text"
    with pytest.raises(BodyTooLarge):
        inflate(squeeze(bytes(MIB)), encoding, MIB - 1, too_long)
    for wrong in (b"no", squeeze(b"text")[:-2]):
        with pytest.raises(MalformedBody):
            inflate(wrong, encoding, 10, too_long)
    with pytest.raises(MalformedBody, match="grpc-encoding does not say"):
        inflate(squeeze(b"text"), b"identity", 10, too_long)


def test_messages_take_room_before_they_arrive() -> None:
    """By the length that they announce; it is given back when they are done with, or never become whole."""
    budget = BodyBudget(6 * MIB)
    taken = reader(budget=budget)
    assert not taken.feed(add_prefix(bytes(3 * MIB))[:100])
    assert budget.held_bytes == 3 * MIB
    other = reader(budget=budget)
    (error,) = other.feed(add_prefix(bytes(4 * MIB))[:5])
    assert isinstance(error, Overloaded)
    (message,) = taken.feed(add_prefix(bytes(3 * MIB))[100:])
    assert isinstance(message, Message)
    assert message.reservation is not None
    message.reservation.release()
    message.reservation.release()
    assert budget.held_bytes == 0
    taken.feed(add_prefix(bytes(3 * MIB))[:100])
    taken.close()
    assert budget.held_bytes == 0


def test_a_connection_has_a_little_that_is_not_counted() -> None:
    """All of its messages together, as a body of HTTP; above that each byte is counted."""
    budget = BodyBudget(64 * MIB)
    messages = MessageBudget(lambda: budget, "10.0.0.1")
    assert messages.reserve(1 << 16) is None
    holds = [messages.reserve(MIB // 2) for _ in range(2)]
    assert budget.held_bytes == 0
    holds += [messages.reserve(MIB // 2) for _ in range(4)]
    assert budget.held_bytes == 3 * MIB
    for reservation in holds:
        assert reservation is not None
        reservation.release()
    assert budget.held_bytes == 0
