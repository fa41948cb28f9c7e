"""The exchanges of a service, and the choice among them."""

from __future__ import annotations

from tests.puppets import Joined

from stoker.gateway.scoring.replicas import Replicas


def test_replicas_only_exchange_is_known_without_a_search() -> None:
    """With several or none there is no only one."""
    with Joined(frontends=2) as joined:
        first, second = joined.exchanges
        replicas = Replicas()
        assert replicas.only is None
        replicas.add(first)
        assert replicas.only is first
        replicas.add(second)
        assert replicas.only is None
        assert replicas.remove(first)
        assert not replicas.remove(first)
        assert replicas.only is second
        assert replicas.clear() == [second]
        assert replicas.only is replicas.least_loaded() is None


def test_replicas_of_equal_load_take_turns() -> None:
    """The one that was chosen longest ago is chosen next."""
    with Joined(frontends=2) as joined:
        replicas = Replicas()
        for exchange in joined.exchanges:
            replicas.add(exchange)
        chosen = [replicas.least_loaded() for _ in range(4)]
        assert chosen[:2] == chosen[2:]
        assert set(chosen) == set(joined.exchanges)
