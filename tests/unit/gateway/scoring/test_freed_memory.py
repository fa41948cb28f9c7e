"""When memory that large bodies have left behind is given back."""

from __future__ import annotations

from stoker.gateway.http.body_budget import BodyBudget, Caller
from stoker.gateway.scoring.freed_memory import TrimSchedule
from stoker.system.resources import private_memory

MIB = 1 << 20
CALLER = Caller.at("10.0.0.1")


def looks(leftovers: TrimSchedule, count: int) -> list[bool]:
    """What it says in so many seconds."""
    return [leftovers.due() for _ in range(count)]


def test_memory_is_given_back_when_nobody_uses_it() -> None:
    """Much of it, after some quiet seconds; what does not go is asked for again, ever more seldom."""
    size = 100 * MIB
    leftovers = TrimSchedule(BodyBudget(), lambda: size)
    assert looks(leftovers, 5) == [False] * 5
    size += 127 * MIB
    assert looks(leftovers, 5) == [False] * 5
    size += MIB
    for quiet in (2, 5, 11):
        assert looks(leftovers, quiet + 1) == [*[False] * quiet, True]
    size -= 80 * MIB
    assert looks(leftovers, 50) == [False] * 50
    size += 80 * MIB
    assert looks(leftovers, 3) == [False, False, True]
    assert sum(looks(leftovers, 6000)) < 20


def test_memory_is_given_back_soon_after_a_long_time_of_use() -> None:
    """Slow readers of large answers hold much for minutes: what was tried meanwhile does not put it off."""
    size = 100 * MIB
    leftovers = TrimSchedule(BodyBudget(), lambda: size)
    for second in range(600):
        size = (400 + 20 * (second % 5)) * MIB
        leftovers.due()
    size = 300 * MIB
    assert sum(looks(leftovers, 10)) == 1
    assert sum(looks(leftovers, 6000)) < 20


def test_bodies_that_are_held_are_waited_for() -> None:
    """The seconds begin when the last one has been answered."""
    budget, size = BodyBudget(), 0
    leftovers = TrimSchedule(budget, lambda: size)
    size = 500 * MIB
    assert looks(leftovers, 2) == [False, False]
    assert budget.reserve(CALLER, 2 * MIB, 2 * MIB)
    assert looks(leftovers, 5) == [False] * 5
    budget.release(CALLER, 2 * MIB, 2 * MIB)
    assert looks(leftovers, 3) == [False, False, True]


def test_memory_of_ones_own_is_read() -> None:
    """This process has some, and less than all that it has mapped."""
    assert MIB < private_memory() < 1 << 40
