"""The shares of callers in the memory for large bodies: no caller can take the others' share."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.body_budgets import least_budget_bytes

from stoker.errors import Overloaded
from stoker.gateway.http.body_budget import (
    LARGE_BODY_BYTES,
    Allowance,
    BodyBudget,
    Caller,
)

MIB = 1 << 20
TOTAL = 60
A_NEWCOMERS = 2 * TOTAL // 15
"""The bytes left to a newcomer beside one caller who holds its whole share."""
CALLERS = [
    Caller("k", "10.0.0.1"),
    Caller("k", "10.0.0.2"),
    Caller("other", "10.0.0.1"),
    Caller(None, "10.0.0.3"),
]
NEWCOMERS = [Caller("new", "10.9.9.9"), Caller("new", "10.0.0.1"), Caller(None, "10.9.9.9")]

sizes = st.integers(1, TOTAL)
callers = st.sampled_from(CALLERS)


def take(budget: BodyBudget, caller: Caller, size: int = 1) -> bool:
    """Let so much arrive that was not announced."""
    return budget.reserve(caller, size, size)


def take_all(budget: BodyBudget, *of: Caller) -> dict[Caller, int]:
    """Let these callers take memory bit by bit and in turn; returns the sum."""
    taken = dict.fromkeys(of, 0)
    while any(go_on := [take(budget, caller) for caller in of]):
        for caller, went in zip(of, go_on, strict=True):
            taken[caller] += went
    return taken


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(("take", "announce", "end")), callers, sizes), max_size=60))
def test_held_bytes_are_those_taken_and_not_released(steps: list[tuple[str, Caller, int]]) -> None:
    """They are never more than the budget; at the end nobody holds any."""
    budget, bodies = BodyBudget(TOTAL), deque[tuple[Caller, int, int]]()
    for kind, caller, size in steps:
        if kind == "take" and take(budget, caller, size):
            bodies.append((caller, size, size))
            assert sum(held for one, held, _ in bodies if one == caller) <= 2 * budget.left_bytes
        elif kind == "announce" and budget.announce(caller, size):
            bodies.append((caller, 0, size))
        elif kind == "end" and bodies:
            budget.release(*bodies.popleft())
        assert budget.held_bytes == sum(held for _, held, _ in bodies) <= TOTAL
        assert budget.left_bytes == TOTAL - budget.held_bytes
    for body in bodies:
        budget.release(*body)
    assert budget.held_bytes == 0
    for caller in CALLERS:
        assert budget.announce(caller, 2 * TOTAL // 3)
        budget.release(caller, 0, 2 * TOTAL // 3)


@settings(max_examples=40)
@given(callers, st.lists(sizes, max_size=20))
def test_announced_sizes_take_nothing_from_other_callers(caller: Caller, announced: list[int]) -> None:
    """A caller that announces much and sends nothing leaves the whole budget to others."""
    budget = BodyBudget(TOTAL)
    for size in announced:
        budget.announce(caller, size)
    assert budget.left_bytes == TOTAL
    newcomer = Caller("new", "10.9.9.9")
    assert take_all(budget, newcomer)[newcomer] == 2 * TOTAL // 3


@settings(max_examples=40)
@given(callers, st.lists(sizes, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_announced_body_of_a_lone_caller_is_never_refused_later(
    caller: Caller, announced: list[int], random: object
) -> None:
    """Without other callers none of its admitted bodies is refused later, in any order of arrival."""
    budget = BodyBudget(TOTAL)
    arriving = [size for size in announced if budget.announce(caller, size)]
    pieces = [number for number, size in enumerate(arriving) for _ in range(size)]
    random.shuffle(pieces)  # type: ignore[attr-defined]  # hypothesis has no type for it
    assert all(budget.reserve(caller, 1, 0) for _ in pieces)
    assert budget.held_bytes == sum(arriving)


@pytest.mark.parametrize("newcomer", NEWCOMERS)
@settings(max_examples=40)
@given(st.lists(callers, min_size=1, max_size=4))
def test_a_newcomer_finds_room_beside_a_caller_at_its_limit(newcomer: Caller, greedy: list[Caller]) -> None:
    """Be that one address or a key with several, with bodies of any size: room for a fixed part of the budget."""
    budget = BodyBudget(TOTAL)
    of_one_key = [caller for caller in greedy if caller.key == greedy[0].key]
    take_all(budget, *of_one_key)
    if newcomer.key == greedy[0].key is not None:
        return
    assert take(budget, newcomer, A_NEWCOMERS)


def test_a_newcomer_with_the_same_key_finds_room() -> None:
    """Callers often share a key, so one of them cannot take the whole share of the key."""
    budget = BodyBudget(TOTAL)
    assert take_all(budget, CALLERS[0]) == {CALLERS[0]: 2 * TOTAL // 3}
    assert take(budget, CALLERS[1], A_NEWCOMERS)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 3])
def test_greedy_callers_get_equal_shares(first: int, count: int) -> None:
    """As the bodies of the first caller end, all get as much, and two thirds of the budget or more."""
    budget, independent = BodyBudget(10 * TOTAL), [CALLERS[0], CALLERS[2], CALLERS[3]]
    wanting = [*independent[first:], *independent[:first]][:count]
    held = {**dict.fromkeys(wanting, 0), **take_all(budget, wanting[0])}
    for _ in range(20):
        for caller in wanting:
            ended = -(-held[caller] // 4)
            budget.release(caller, ended, ended)
            held[caller] -= ended
        for caller, more in take_all(budget, *wanting).items():
            held[caller] += more
    assert max(held.values()) - min(held.values()) <= 2 * count
    assert sum(held.values()) >= 2 * budget.total_bytes // 3


@settings(max_examples=40)
@given(st.lists(st.tuples(callers, st.integers(1, 2 * TOTAL // 3)), min_size=1, max_size=8), st.data())
def test_of_bodies_that_do_not_fit_together_one_arrives(
    bodies: list[tuple[Caller, int]], data: st.DataObject
) -> None:
    """No body waits half arrived: one without room is refused, and its memory lets others go on."""
    budget, arriving, whole = BodyBudget(TOTAL), [(caller, size, 0) for caller, size in bodies], 0
    while arriving:
        caller, size, held = arriving.pop(data.draw(st.integers(0, len(arriving) - 1)))
        step = min(size - held, 8)
        if not take(budget, caller, step):
            budget.release(caller, held, held)
        elif held + step == size:
            whole += 1
            budget.release(caller, size, size)
        else:
            arriving.append((caller, size, held + step))
    assert whole >= 1
    assert budget.held_bytes == 0


@settings(max_examples=40)
@given(st.integers(LARGE_BODY_BYTES + 1, 200 * MIB))
def test_the_least_budget_has_room_for_one_body(size: int) -> None:
    """Of the largest size, if there is no other; one step less has not."""
    for total, fits in ((least_budget_bytes(size), True), (least_budget_bytes(size) - 1, False)):
        with Allowance(BodyBudget(total), lambda: CALLERS[0]) as allowance:
            try:
                allowance.announce(size)
                allowance.cover(size)
            except Overloaded:
                assert not fits
            else:
                assert fits


def test_already_covered_bytes_are_not_counted_twice() -> None:
    """Bytes count as they arrive; an announced body counts only against further ones of its caller."""
    budget = BodyBudget(15 * MIB)
    with Allowance(budget, lambda: CALLERS[0]) as allowance:
        allowance.announce(5 * MIB - 1)
        assert budget.left_bytes == 15 * MIB
        allowance.cover(LARGE_BODY_BYTES)
        assert budget.left_bytes == 15 * MIB
        allowance.cover(2 * MIB - 1)
        allowance.cover(2 * MIB)
        assert budget.left_bytes == 13 * MIB
        with Allowance(budget, lambda: CALLERS[0]) as another, pytest.raises(Overloaded):
            another.announce(6 * MIB)
        with Allowance(budget, lambda: CALLERS[3]) as others:
            others.announce(6 * MIB)
        with pytest.raises(Overloaded):
            allowance.cover(11 * MIB)
    assert budget.left_bytes == 15 * MIB


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::dead:beef", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("unix:", "unix:", True),
    ],
)
def test_a_host_is_one_caller(one: str, other: str, same: bool) -> None:
    """Of IPv6 it has a whole network of addresses."""
    assert (Caller.at(one) == Caller.at(other)) is same
    assert Caller.at(one, "k") != Caller.at(one)
