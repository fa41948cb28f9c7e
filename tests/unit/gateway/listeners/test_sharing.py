"""The choice of a frontend for a new connection, and its handover."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import metric_memory

from stoker.gateway.listeners.acceptor import Acceptor, Peers, choose_peer


@given(
    st.integers(2, 9).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=60).map(lambda at: (n, at)))
)
def test_connections_are_even_wherever_the_kernel_puts_them(arrivals: tuple[int, list[int]]) -> None:
    """Nobody has more than one, or an eighth, above another; without the rule all could be with one."""
    count, at = arrivals
    has = [0] * count
    for own in at:
        taker = choose_peer(own, has)
        has[own if taker is None else taker] += 1
    assert max(has) - min(has) <= 1 + max(has) // 8


@given(st.lists(st.none() | st.integers(0, 99), min_size=1, max_size=9), st.data())
def test_choose_peer_leaves_out_full_and_equally_busy_frontends(
    counts: Sequence[int | None], data: st.DataObject
) -> None:
    """Handing on costs something: it happens only if the other one has fewer, or there is no room here."""
    own = data.draw(st.integers(0, len(counts) - 1))
    taker = choose_peer(own, counts)
    has = counts[own]
    if taker is not None:
        there = counts[taker]
        assert taker != own
        assert there is not None
        assert has is None or there < has
    elif has is None:
        assert not any(count is not None for count in counts)


Frontend = tuple[Acceptor, list[socket.socket]]


@pytest.fixture
def frontends() -> Iterator[Callable[[], list[Frontend]]]:
    """Three frontends in this process, which keep the connections handed to them."""
    with ExitStack() as stack:

        def build() -> list[Frontend]:
            memory = metric_memory()
            pages = [memory.page(number) for number in range(3)]
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in pages]
            for pair in pairs:
                for sock in pair:
                    stack.enter_context(sock)
            made: list[Frontend] = []
            for own, (mailbox, _) in enumerate(pairs):
                kept: list[socket.socket] = []

                async def keep(sock: socket.socket, kept: list[socket.socket] = kept) -> None:
                    kept.append(stack.enter_context(sock))

                peers = Peers(own, pages, mailbox, [door for _, door in pairs])
                acceptor = Acceptor()
                acceptor.join(peers, "http", keep)
                peers.start()
                made.append((acceptor, kept))
            return made

        yield build


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


@pytest.mark.anyio
async def test_a_connection_goes_to_the_frontend_with_the_fewest(
    frontends: Callable[[], list[Frontend]],
) -> None:
    """It is the very connection; who hands on a burst does not give all of it to one that has not looked yet."""
    (first, _), (second, of_second), (_, of_third) = frontends()
    first.report(3)
    second.report(1)
    ends = [socket.socketpair() for _ in range(3)]
    handed = [first.hand_over(there.fileno()) for _, there in ends]
    await _turns()
    assert handed == [True, True, True]
    assert (len(of_second), len(of_third)) == (1, 2)
    for here, there in ends:
        there.close()
        here.send(b"?")
    heard = [sock.recv(1) for sock in (*of_second, *of_third)]
    assert heard == [b"?"] * 3, "closing it where it was accepted does not end it"
    for here, _ in ends:
        here.close()


@pytest.mark.anyio
async def test_frontend_that_left_neither_gives_nor_gets_connections(
    frontends: Callable[[], list[Frontend]],
) -> None:
    """Connections that are under way to a frontend that leaves are served nevertheless."""
    (first, _), (second, of_second), (third, _) = frontends()
    first.report(3)
    third.report(3)
    here, there = socket.socketpair()
    with here, there:
        assert first.hand_over(there.fileno())
        second.leave()
        second.report(0)
        await _turns()
        assert len(of_second) == 1
        assert not first.hand_over(there.fileno())
        first.leave()
        third.report(0)
        assert not first.hand_over(there.fileno())


@pytest.mark.anyio
async def test_full_mailbox_costs_no_connection(frontends: Callable[[], list[Frontend]]) -> None:
    """One that does not look for a while is not given more than its mailbox holds."""
    (first, _), (second, _), (third, of_third) = frontends()
    second.leave()
    here, there = socket.socketpair()
    with here, there:
        handed = 0
        for _ in range(10_000):
            first.report(9)
            third.report(0)
            if not first.hand_over(there.fileno()):
                break
            handed += 1
        else:
            pytest.fail("a mailbox that nobody reads takes everything")
        while len(of_third) < handed:
            await _turns()
        assert len(of_third) == handed


@pytest.fixture
def no_descriptor_is_free() -> Callable[[], AbstractContextManager[None]]:
    """Lets this process have the descriptors that it has, and no further one."""

    @contextmanager
    def limited() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    return limited


@pytest.mark.anyio
async def test_a_connection_that_is_lost_on_its_way_is_not_counted(
    frontends: Callable[[], list[Frontend]],
    no_descriptor_is_free: Callable[[], AbstractContextManager[None]],
) -> None:
    """A frontend without a descriptor reports its number again, and gets connections when it has room."""
    (first, _), (second, of_second), (third, _) = frontends()
    first.report(1)
    third.report(1)
    here, there = socket.socketpair()
    with here, there:
        await _turns()
        assert first.hand_over(there.fileno())
        assert not first.hand_over(there.fileno()), "the one on its way is counted"
        with no_descriptor_is_free():
            await _turns()
        assert of_second == []
        assert not first.hand_over(there.fileno()), "there is no room"
        second.check_room()
        assert first.hand_over(there.fileno())
        await _turns()
        assert len(of_second) == 1


@pytest.mark.anyio
async def test_a_connection_that_cannot_be_served_is_not_counted() -> None:
    """Its caller may be gone before it is taken; the frontend that handed it on has counted it."""

    async def fail(sock: socket.socket) -> None:
        sock.close()
        raise ConnectionResetError

    page = metric_memory().page(0)
    mailbox, door = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    here, there = socket.socketpair()
    with mailbox, door, here, there:
        peers = Peers(0, [page], mailbox, [door])
        Acceptor().join(peers, "http", fail)
        peers.start()
        page.add_connections("http", 1)
        assert peers.send(0, "http", there.fileno())
        await _turns()
        assert page.connections("http") == 0
