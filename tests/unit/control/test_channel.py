"""The control channel: messages of any length, with descriptors, and what becomes of them where there is no room."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pytest
from tests.descriptors import open_descriptors, room_for_descriptors

from stoker.control.channel import Codec, ControlChannel


@dataclass(frozen=True, slots=True)
class Text:
    """A message of any length."""

    text: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Next:
    """A message of no length."""


Messages = Text | Next
Channel = ControlChannel[Messages, Messages]
Pair = tuple[Channel, Channel]

CODEC: Final[Codec[Messages, Messages]] = Codec(Messages, Messages)

LARGE = "模型" * 400_000
"""A text that no packet holds, and whose JSON is twelve bytes for each two letters."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The supervisor's end, which does not block, and the process's; both close the descriptors they received."""
    before = open_descriptors()
    supervisor, far = ControlChannel.pair(CODEC)
    with closing(supervisor), closing(ControlChannel(far, CODEC)) as process:
        yield supervisor, process
    assert open_descriptors() == before


@pytest.mark.parametrize("text", ["short", "é" * 10_922, "é" * 60_000, LARGE])
def test_messages_of_any_length_go_both_ways_with_descriptors(pair: Pair, text: str) -> None:
    """A script's sample or a traceback may be long, and may have letters that JSON escapes."""
    reading, writing = os.pipe()
    for sender, receiver in (pair, reversed(pair)):
        assert sender.send(Text(text, 3), [writing])
        assert sender.send(Next())
        received = receiver.receive()
        assert received is not None
        message, (fd,) = received
        assert message == Text(text, 3)
        assert not os.get_inheritable(fd)
        os.write(fd, b"!")
        os.close(fd)
        assert os.read(reading, 2) == b"!"
        assert receiver.receive() == (Next(), [])
    os.close(reading)
    os.close(writing)


def test_descriptors_are_never_inherited(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are closed in processes that are started from the moment they arrive, not a call later."""
    sender, receiver = pair
    monkeypatch.setattr(os, "set_inheritable", lambda *_: None)
    for text in ("short", LARGE):
        assert sender.send(Text(text), [sender.fileno()])
        _, (fd,) = receiver.receive() or (None, [-1])
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_messages_to_a_busy_process_arrive_later_in_order(pair: Pair) -> None:
    """Large and small messages wait together, each with its descriptors."""
    supervisor, process = pair
    os.set_blocking(process.fileno(), False)

    async def scene() -> list[int]:
        sent = 0
        # The kernel calls a socket full long before it takes no more.
        while sent < 8 or select.select([], [supervisor], [], 0)[1]:
            supervisor.send(Text("x" * 60_000, sent))
            sent += 1
        for _ in range(4 * sent):
            supervisor.send(Text("x" * 60_000, sent))
            sent += 1
        reading, writing = os.pipe()
        supervisor.send(Text(LARGE, sent), [writing])
        os.close(writing)
        numbers = []
        while len(numbers) <= sent:
            try:
                received = process.receive()
            except BlockingIOError:
                await asyncio.sleep(0)
                continue
            assert received is not None
            message, fds = received
            assert isinstance(message, Text)
            numbers.append(message.number)
        (fd,) = fds
        assert message.text == LARGE
        os.write(fd, b"!")
        assert os.read(reading, 2) == b"!"
        os.close(fd)
        os.close(reading)
        return numbers

    numbers = asyncio.run(scene())
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("text", ["short", LARGE])
def test_message_with_lost_descriptors_has_none_at_all(
    pair: Pair, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel drops descriptors without room and only sets a flag."""
    supervisor, process = pair
    supervisor.send(Text(text), [0, 1])
    supervisor.send(Next())
    with room_for_descriptors(1):
        assert process.receive() == (Text(text), [])
        assert process.receive() == (Next(), [])
    assert "too many open files" in caplog.text


def test_a_message_that_was_lost_is_an_error(pair: Pair) -> None:
    """A large one is behind a descriptor; the next one is there."""
    supervisor, process = pair
    supervisor.send(Text(LARGE), [0])
    supervisor.send(Next())
    with room_for_descriptors(0):
        with pytest.raises(OSError, match="a message of another process was lost") as lost:
            process.receive()
        assert lost.value.errno == errno.EMFILE
        with pytest.raises(OSError, match="Too many open files"):
            process.send(Text(LARGE))
        assert process.receive() == (Next(), [])


def test_a_process_that_has_gone_is_not_an_error(pair: Pair) -> None:
    """Messages of any size to it are dropped, and its end reads as EOF."""
    supervisor, process = pair
    process.close()
    assert not supervisor.send(Next())
    assert not supervisor.send(Text(LARGE), [0])
    assert supervisor.receive() is None


def test_an_inherited_end_is_not_inherited_further() -> None:
    """Processes that a script starts do not keep the channel open."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near:
        os.set_inheritable(far.fileno(), True)
        channel = ControlChannel.inherited(far.detach(), CODEC)
        assert not os.get_inheritable(channel.fileno())
        channel.close()
        assert near.recv(1) == b""
