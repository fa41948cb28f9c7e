"""RoundRobin keep shares exactly, and values stick to a version while weights shift."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.takeover.traffic_split import RoundRobin, Split

FEW = settings(STEADY, max_examples=30)

weights = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 20), min_size=1).filter(
    lambda shares: sum(shares.values()) > 0
)
values = st.binary(min_size=1, max_size=8)


@FEW
@given(weights, st.integers(1, 3))
def test_every_round_of_turns_has_the_shares(shares: dict[str, int], rounds: int) -> None:
    """At no time is a version a whole turn away from its share, except for versions without a share."""
    turns, total, counts = RoundRobin(shares), sum(shares.values()), Counter[str | None]()
    for turn in range(1, rounds * total + 1):
        counts[turns.next()] += 1
        assert all(abs(counts[name] - turn * weight / total) < len(shares) for name, weight in shares.items())
        if turn % total == 0:
            assert counts == {name: weight * turn // total for name, weight in shares.items() if weight}


def test_version_without_a_weight_has_no_turn() -> None:
    """An endpoint all of whose deployments have 0 answers nobody who names none."""
    assert RoundRobin({"a": 0}).next() is None


@FEW
@given(values, st.integers(0, 99), st.integers(0, 99))
def test_caller_keeps_the_new_version_while_its_weight_grows(value: bytes, share: int, more: int) -> None:
    """A value gets the same version in every frontend."""
    fewer, larger = sorted((share, more))
    before, after = (Split({"3": 100 - percent, "7": percent}, b"x-user") for percent in (fewer, larger))
    assert before.next(value) == Split({"3": 100 - fewer, "7": fewer}, b"x-user").next(value)
    if before.next(value) == "7":
        assert after.next(value) == "7"


def test_only_callers_with_the_header_keep_their_version() -> None:
    """Their values are spread by weight; callers without the header take turns."""
    split = Split({"3": 90, "7": 10}, b"x-user")
    spread = Counter(split.next(b"user %d" % number) for number in range(2000))
    assert 150 < spread["7"] < 250
    assert Counter(split.next() for _ in range(100)) == {"3": 90, "7": 10}
    loose = Split({"3": 1, "7": 1})
    assert [loose.next(b"me") for _ in range(4)] == ["3", "7", "3", "7"]


def test_a_split_goes_on_only_as_one_that_is_alike() -> None:
    """The order counts, as it decides each version's places."""
    split = Split({"3": 9, "7": 1, "8": 0}, b"x")
    assert split.equals(Split({"3": 9, "7": 1}, b"x"))
    for other in (
        None,
        Split({"7": 1, "3": 9}, b"x"),
        Split({"3": 9, "7": 1}),
        Split({"3": 9, "7": 2}, b"x"),
    ):
        assert not split.equals(other)
