"""The choice of a replica by the boards of their devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.puppets import Joined

from stoker.device.batch_decisions import BatchPolicy
from stoker.gateway.rows.routing import choose_replica

POLICY = BatchPolicy(4, target_ms=10_000)
"""Batches of up to 4 rows, of which each takes 10 ms."""
CAPACITY = 16


@pytest.fixture
def replicas() -> Iterator[list[Joined]]:
    """Two replicas with targets, each of which two frontends use."""
    with (
        Joined(frontends=2, policy=POLICY, capacity=CAPACITY) as first,
        Joined(frontends=2, policy=POLICY, capacity=CAPACITY) as second,
    ):
        yield [first, second]


def teach(joined: Joined) -> None:
    """Let a device know what batches take, and say so."""
    joined.worker.teach((rows, rows * 10_000_000) for rows in (1, 2, 4) for _ in range(3))
    joined.submit(0, frontend=1)
    joined.settle()


def chosen(replicas: list[Joined]) -> int:
    """The place of the replica that a request of the first frontend goes to."""
    exchange = choose_replica([joined.exchanges[0] for joined in replicas], replicas[0].clock)
    return [joined.exchanges[0] for joined in replicas].index(exchange)


def test_a_request_goes_where_it_would_be_done_first(replicas: list[Joined]) -> None:
    """Rows of other frontends count, which a frontend hears of from the device."""
    for joined in replicas:
        teach(joined)
    assert chosen(replicas) == 0
    for number in range(8):
        replicas[0].submit(number, frontend=1)
    replicas[0].turn_frontends()
    replicas[0].turn_device()
    replicas[1].submit(0)
    assert [joined.exchanges[0].leased_rows for joined in replicas] == [0, 1]
    assert chosen(replicas) == 1
    for joined in replicas:
        joined.settle()


def test_replica_without_known_costs_makes_the_fewest_rows_count(replicas: list[Joined]) -> None:
    """The choice is then the same as without targets."""
    teach(replicas[1])
    replicas[0].submit(0)
    assert chosen(replicas) == 1
    replicas[1].submit(0)
    replicas[1].submit(1)
    assert chosen(replicas) == 0
    for joined in replicas:
        joined.settle()


def test_full_replica_is_passed_over(replicas: list[Joined]) -> None:
    """Requests are refused for want of rows only where no replica has any."""
    for joined in replicas:
        teach(joined)
    for number in range(CAPACITY):
        replicas[0].submit(number)
    for number in range(12):
        replicas[1].submit(number, frontend=1)
    replicas[1].turn_frontends()
    replicas[1].turn_device()
    assert chosen(replicas) == 1
    for joined in replicas:
        joined.settle()


def test_of_many_a_few_are_drawn(replicas: list[Joined], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all frontends would send to the replica that reported the shortest queue last."""
    for joined in replicas:
        teach(joined)
    drawn: list[tuple[int, int]] = []

    def draw(exchanges: list[object], count: int) -> list[object]:
        drawn.append((len(exchanges), count))
        return exchanges[-count:]

    monkeypatch.setattr("random.sample", draw)
    assert chosen([replicas[0], *[replicas[1]] * 4]) == 1
    assert drawn == [(5, 3)]
