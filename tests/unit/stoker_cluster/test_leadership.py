"""Who of several autoscalers acts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stoker_cluster.leadership import Leadership

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Lease:
    """A Lease that refuses changes of an older version of it."""

    def __init__(self) -> None:
        self.version = 1
        self.spec: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(self.spec)}

    def merge(self, change: dict[str, Any]) -> bool:
        if change.get("metadata", {}).get("resourceVersion", str(self.version)) != str(self.version):
            return False
        self.version += 1
        self.spec = {
            name: value for name, value in {**self.spec, **change["spec"]}.items() if value is not None
        }
        return True


def look(one: Leadership, lease: Lease, now_s: float) -> bool:
    """What an autoscaler does at each look; returns whether it may act."""
    if one.is_due(now_s):
        claim = one.claim(lease.read(), now_s, NOON)
        if claim is not None and lease.merge(claim):
            one.record_claim(now_s)
    return one.may_act(now_s)


def test_the_first_one_holds_a_new_lease_and_renews_it() -> None:
    """As people read it: who, since when, how often it has changed hands."""
    lease, one = Lease(), Leadership("one")
    assert look(one, lease, 0.0)
    assert lease.spec == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-11-22T12:00:00.000000Z",
        "acquireTime": "2026-11-22T12:00:00.000000Z",
        "leaseTransitions": 1,
    }
    assert all(look(one, lease, float(now_s)) for now_s in range(100))
    # Every five seconds.
    assert lease.version == 2 + 99 // 5
    assert lease.spec["leaseTransitions"] == 1


def test_another_one_waits_until_the_lease_has_not_changed_for_as_long_as_it_says() -> None:
    """On its own clock, which may be hours apart; then the first one has stopped long ago."""
    lease, one, other = Lease(), Leadership("one"), Leadership("other")
    look(one, lease, 0.0)
    acts = [look(other, lease, 5000.0 + second) for second in range(20)]
    assert acts == [False] * 15 + [True] * 5
    assert (one.may_act(9.9), one.may_act(10.0)) == (True, False)
    assert lease.spec["leaseTransitions"] == 2
    assert not look(one, lease, 16.0), "it sees that another one holds it"


def test_a_holder_that_renews_is_never_replaced() -> None:
    """However long the other one waits."""
    lease, one, other = Lease(), Leadership("one"), Leadership("other")
    for second in range(120):
        assert look(one, lease, float(second))
        assert not look(other, lease, float(second))


def test_of_two_who_claim_it_at_once_one_loses() -> None:
    """The version tells."""
    lease, one, other = Lease(), Leadership("one"), Leadership("other")
    claims = [who.claim(lease.read(), 0.0, NOON) for who in (one, other)]
    assert [lease.merge(claim) for claim in claims if claim is not None] == [True, False]


def test_one_that_ends_lets_it_go() -> None:
    """The next one need not wait; who does not hold it has nothing to let go."""
    lease, one, other = Lease(), Leadership("one"), Leadership("other")
    look(one, lease, 0.0)
    look(other, lease, 0.0)
    assert other.release(0.0) is None
    released = one.release(1.0)
    assert released is not None
    lease.merge(released)
    assert not one.may_act(1.0)
    assert look(other, lease, 1.0)
