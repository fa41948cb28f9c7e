"""Counts in texts for people."""

from stoker.system.wording import format_count


def test_noun_is_in_the_singular_for_one_alone() -> None:
    """None are many."""
    assert [format_count(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [format_count(count, "process", "processes") for count in (1, 2)] == ["1 process", "2 processes"]
