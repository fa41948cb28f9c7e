"""Turns of callers."""

from stoker.residency.taking_turns import RecentTurns


def test_caller_with_the_oldest_turn_is_next() -> None:
    """A caller without a turn comes first; of two of those, the one named first."""
    turns = RecentTurns()
    assert turns.next_of([]) is None
    for caller in ("a", "b", "a"):
        turns.record(caller)
    assert turns.next_of(["a", "b"]) == "b"
    assert turns.next_of(["a", "c", "d", "b"]) == "c"


def test_recent_turns_many_callers_take_limited_memory() -> None:
    """Of any number of callers only the latest are remembered; an earlier one counts as new."""
    turns = RecentTurns()
    for number in range(5000):
        turns.record(f"caller {number}")
    assert len(turns) == 1024
    assert turns.last_turn("caller 0") == 0
    assert turns.last_turn("caller 4999") == 5000
