"""Where new connections go when frontends run out of descriptors."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st
from tests.puppets import metric_memory

from stoker.gateway.listeners.acceptor import Acceptor, Peers


class PuppetSiblings:
    """Delivers connections that a frontend hands on at once."""

    def __init__(self, own: int, world: World) -> None:
        self.own, self.pages, self._world = own, world.pages, world
        self.acceptors: dict[str, Acceptor] = {}

    def send(self, to: int, protocol: str, descriptor: int) -> bool:
        """Let the other frontend have it."""
        self._world.arrive(to, handed_over=True)
        return True


class World:
    """Frontends that may have so many descriptors each, and their connections."""

    def __init__(self, limits: Sequence[int]) -> None:
        memory = metric_memory()
        self.pages = [memory.page(number) for number in range(len(limits))]
        # An eighth is kept.
        self.most = [limit - limit // 8 for limit in limits]
        self.used: list[set[int]] = [set() for _ in limits]
        self.refused = 0
        self.acceptors: list[Acceptor] = []
        for own, limit in enumerate(limits):
            with patch.object(resource, "getrlimit", lambda _, limit=limit: (limit, limit)):
                acceptor = Acceptor(self._refuse)
            acceptor.join(cast(Peers, PuppetSiblings(own, self)), "http", cast(Any, None))
            self.acceptors.append(acceptor)

    def _refuse(self) -> None:
        self.refused += 1

    @property
    def connections(self) -> list[int]:
        """How many each frontend has."""
        return [len(used) for used in self.used]

    def arrive(self, at: int, *, handed_over: bool = False) -> None:
        """Let a connection arrive; the kernel gives it the lowest descriptor that is free."""
        descriptor = min(set(range(len(self.used[at]) + 1)) - self.used[at])
        if self.acceptors[at].accepts(descriptor, handed_over=handed_over):
            self.used[at].add(descriptor)
            self.acceptors[at].report(len(self.used[at]))

    def end(self, at: int) -> None:
        """Let a connection end, if there is one."""
        if self.used[at]:
            self.used[at].pop()
            self.acceptors[at].report(len(self.used[at]))


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[bool, int]]]:
    limits = draw(st.lists(st.integers(2, 40), min_size=1, max_size=4))
    frontends = st.integers(0, len(limits) - 1)
    return limits, draw(st.lists(st.tuples(st.booleans(), frontends), max_size=150))


@given(_histories())
@example(([2, 2], [(True, 0), (True, 0), (True, 0), (True, 1)]))
def test_no_connection_is_closed_while_a_frontend_has_room(
    history: tuple[list[int], list[tuple[bool, int]]],
) -> None:
    """Wherever the kernel puts newcomers; a full frontend has the fewest connections, but is given none of others."""
    limits, happenings = history
    world = World(limits)
    for comes, at in happenings:
        before, refused = world.connections, world.refused
        if not comes:
            world.end(at)
        else:
            room = any(count < most for count, most in zip(before, world.most, strict=True))
            world.arrive(at)
            assert (sum(world.connections) - sum(before), world.refused - refused) == (room, not room)
        assert all(count <= most for count, most in zip(world.connections, world.most, strict=True))


def test_a_single_frontend_serves_connections_up_to_its_room() -> None:
    """Without siblings there is nobody to hand connections to, and each that does not fit is counted."""
    with patch.object(resource, "getrlimit", lambda _: (16, 16)):
        refused: list[None] = []
        acceptor = Acceptor(lambda: refused.append(None))
    assert [acceptor.accepts(descriptor) for descriptor in (12, 13, 14)] == [True, True, False]
    assert len(refused) == 1


def test_there_is_room_again_when_the_limit_is_raised() -> None:
    """A full frontend takes the connections of others again as soon as it has looked at its limit."""
    world = World([8, 1000])
    while len(world.used[0]) < world.most[0]:
        world.arrive(0)
    assert world.pages[0].connections("http") is None
    world.acceptors[0].check_room()
    assert world.pages[0].connections("http") == world.most[0]
