"""Sending the callers of the gRPC port away by a frame between those of the library."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from stoker.gateway.grpc.connections import Connections

GOAWAY = bytes.fromhex("000008 07 00 00000000 7fffffff 00000000")
PATIENCE_S = 10.0
NOBODY: set[int] = set()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A listening socket of this process."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@contextmanager
def connected(
    listening: socket.socket, said: bytes = b"settings"
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection's ends, caller first; the other one has said something, and the caller has read it."""
    with ExitStack() as stack:
        caller = stack.enter_context(socket.create_connection(listening.getsockname(), timeout=PATIENCE_S))
        server = stack.enter_context(listening.accept()[0])
        if said:
            server.sendall(said)
            assert caller.recv(100) == said
        yield caller, server


def look_until(left: int, connections: Connections, busy: set[int] = NOBODY) -> None:
    """Look until so many connections are left that have not been told."""
    deadline_s = time.monotonic() + PATIENCE_S
    while connections.send_away(busy) != left:
        assert time.monotonic() < deadline_s


def test_each_connection_is_told_once(listening: socket.socket) -> None:
    """That nothing more may begin on it, and nothing that has is lost; one that has come since is told too."""
    connections = Connections(listening.getsockname()[1])
    with connected(listening) as (first, _):
        look_until(0, connections)
        assert first.recv(100) == GOAWAY
        with connected(listening) as (second, _):
            look_until(0, connections)
            assert second.recv(100) == GOAWAY
            assert connections.send_away(NOBODY) == 0
            first.setblocking(False)
            with pytest.raises(BlockingIOError):
                first.recv(1)
    assert connections.send_away(NOBODY) == 0


def test_nothing_is_sent_before_the_first_frame(listening: socket.socket) -> None:
    """The library's SETTINGS come first; whoever has not got them is told later."""
    connections = Connections(listening.getsockname()[1])
    with connected(listening, b"") as (caller, server):
        assert [connections.send_away(NOBODY) for _ in range(3)] == [1] * 3
        server.sendall(b"settings")
        assert caller.recv(8) == b"settings"
        look_until(0, connections)
        assert caller.recv(100) == GOAWAY


def test_nothing_is_sent_into_an_answer(listening: socket.socket) -> None:
    """Neither where a long one is being written, nor where the kernel has no room for the rest of a frame."""
    connections = Connections(listening.getsockname()[1])
    with connected(listening) as (caller, server):
        assert [connections.send_away({caller.getsockname()[1]}) for _ in range(3)] == [1] * 3
        server.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += server.send(b"a" * 65536)
        assert [connections.send_away(NOBODY) for _ in range(3)] == [1] * 3
        while sent:
            sent -= len(caller.recv(sent))
        look_until(0, connections)
        assert caller.recv(100) == GOAWAY


def test_nobody_comes_in_any_more(listening: socket.socket) -> None:
    """Once the door is closed; those who are in stay."""
    connections = Connections(listening.getsockname()[1])
    with connected(listening) as (caller, server):
        connections.stop_accepting()
        with socket.socket() as late:
            late.settimeout(0.01)
            assert late.connect_ex(listening.getsockname()) != 0
        server.sendall(b"answer")
        assert caller.recv(100) == b"answer"
