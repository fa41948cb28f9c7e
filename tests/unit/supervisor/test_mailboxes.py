"""Connections in the mailbox of a frontend that has ended: others have them, or they wait for its successor."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.descriptors import open_descriptors, room_for_descriptors
from tests.puppets import metric_memory

from stoker.supervisor.mailboxes import Mailbox, Receiver, forward


@pytest.fixture
def boxes() -> Iterator[list[Receiver]]:
    """Three frontends."""
    memory = metric_memory()
    with ExitStack() as stack:
        receivers = [Receiver(Mailbox.new(), memory.page(page)) for page in range(3)]
        for mailbox, _ in receivers:
            for end in mailbox:
                stack.enter_context(end)
        yield receivers


def _post(mailbox: Mailbox) -> None:
    """Put a connection into a mailbox, on which its caller has sent something."""
    here, there = socket.socketpair()
    with here, there:
        there.send(b"?")
        socket.send_fds(mailbox.door, [b"grpc"], [here.fileno()])


def _taken(mailbox: Mailbox) -> list[bytes]:
    """Return the bytes that callers have sent on the connections of a mailbox."""
    heard = []
    while True:
        try:
            kind, (descriptor,), *_ = socket.recv_fds(mailbox.inbox, 16, 1)
        except BlockingIOError:
            return heard
        assert kind == b"grpc"
        with socket.socket(fileno=descriptor) as connection:
            heard.append(connection.recv(1))


def test_others_have_them_in_turns(boxes: list[Receiver]) -> None:
    """Nothing of a connection is lost, each receiver has counted what it will have, and no descriptor stays here."""
    ended, *others = boxes
    for _ in range(3):
        _post(ended.mailbox)
    for _, page in others:
        page.set_connections("grpc", 0, accepts=True)
    before = open_descriptors()
    assert forward(ended.mailbox, others) == 3
    assert open_descriptors() == before
    assert [page.connections("grpc") for _, page in others] == [2, 1]
    assert [_taken(mailbox) for mailbox, _ in boxes] == [[], [b"?", b"?"], [b"?"]]


def test_without_anybody_else_they_wait(boxes: list[Receiver]) -> None:
    """A successor finds them."""
    ended, *_ = boxes
    _post(ended.mailbox)
    assert forward(ended.mailbox, []) == 0
    assert _taken(ended.mailbox) == [b"?"]


def test_connections_that_do_not_fit_wait(boxes: list[Receiver]) -> None:
    """A receiver that does not read holds some connections, and the others wait."""
    ended, other, _ = boxes
    other.page.set_connections("grpc", 0, accepts=True)
    posted = 0
    while True:
        _post(ended.mailbox)
        posted += 1
        forwarded = forward(ended.mailbox, [other])
        if not forwarded:
            break
    assert other.page.connections("grpc") == posted - 1
    assert (len(_taken(other.mailbox)), len(_taken(ended.mailbox))) == (posted - 1, 1)


def test_connection_that_cannot_be_received_is_counted(boxes: list[Receiver]) -> None:
    """Without a free descriptor the kernel closes one connection; the others wait."""
    ended, other, _ = boxes
    other.page.set_connections("grpc", 0, accepts=True)
    _post(ended.mailbox)
    _post(ended.mailbox)
    lost: list[None] = []
    with room_for_descriptors(0):
        assert forward(ended.mailbox, [other], lambda: lost.append(None)) == 0
    assert len(lost) == 1
    assert _taken(ended.mailbox) == [b"?"]


def test_connection_that_cannot_be_put_back_is_counted(boxes: list[Receiver]) -> None:
    """A connection that is lost is counted, and forwarding goes on."""
    ended, other, _ = boxes
    other.page.set_connections("grpc", 0, accepts=True)
    _post(ended.mailbox)
    other.mailbox.door.close()
    ended.mailbox.door.close()
    lost: list[None] = []
    assert forward(ended.mailbox, [other], lambda: lost.append(None)) == 0
    assert len(lost) == 1
    assert other.page.connections("grpc") == 0
