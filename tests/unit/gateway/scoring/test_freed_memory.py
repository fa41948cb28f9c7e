"""The schedule that returns memory of large bodies to the system."""

from __future__ import annotations

from stoker.gateway.http.body_budget import BodyBudget, Caller
from stoker.gateway.scoring.freed_memory import TrimSchedule
from stoker.system.resources import private_memory

MIB = 1 << 20
CALLER = Caller.at("10.0.0.1")


def ask_each_second(leftovers: TrimSchedule, count: int) -> list[bool]:
    """The schedule's answer in each of `count` seconds."""
    return [leftovers.due() for _ in range(count)]


def test_unused_memory_is_given_back() -> None:
    """It is returned after some quiet seconds if there is much of it; failed tries are repeated ever less often."""
    size = 100 * MIB
    leftovers = TrimSchedule(BodyBudget(), lambda: size)
    assert ask_each_second(leftovers, 5) == [False] * 5
    size += 127 * MIB
    assert ask_each_second(leftovers, 5) == [False] * 5
    size += MIB
    for quiet in (2, 5, 11):
        assert ask_each_second(leftovers, quiet + 1) == [*[False] * quiet, True]
    size -= 80 * MIB
    assert ask_each_second(leftovers, 50) == [False] * 50
    size += 80 * MIB
    assert ask_each_second(leftovers, 3) == [False, False, True]
    assert sum(ask_each_second(leftovers, 6000)) < 20


def test_memory_is_given_back_soon_after_a_long_time_of_use() -> None:
    """Slow readers of large answers hold memory for minutes; tries in the meantime do not delay the return."""
    size = 100 * MIB
    leftovers = TrimSchedule(BodyBudget(), lambda: size)
    for second in range(600):
        size = (400 + 20 * (second % 5)) * MIB
        leftovers.due()
    size = 300 * MIB
    assert sum(ask_each_second(leftovers, 10)) == 1
    assert sum(ask_each_second(leftovers, 6000)) < 20


def test_bodies_that_are_held_are_waited_for() -> None:
    """The seconds begin when the last one has been answered."""
    budget, size = BodyBudget(), 0
    leftovers = TrimSchedule(budget, lambda: size)
    size = 500 * MIB
    assert ask_each_second(leftovers, 2) == [False, False]
    assert budget.reserve(CALLER, 2 * MIB, 2 * MIB)
    assert ask_each_second(leftovers, 5) == [False] * 5
    budget.release(CALLER, 2 * MIB, 2 * MIB)
    assert ask_each_second(leftovers, 3) == [False, False, True]


def test_memory_of_ones_own_is_read() -> None:
    """This process has some, and less than all that it has mapped."""
    assert MIB < private_memory() < 1 << 40
