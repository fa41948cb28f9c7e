"""Variations of rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.unit.scripts.json_values import JSON

from stoker.scripts import row_variations
from stoker.scripts.row_variations import variations

pytestmark = pytest.mark.usefixtures("without_flask")


@given(st.lists(JSON, min_size=1, max_size=3), st.integers(1, 6))
@STEADY
def test_variations_differ_and_keep_their_structure(rows: list[Any], count: int) -> None:
    """Keys, lengths and types stay; the given rows come first; the result is the same each time."""

    def outline(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: outline(item) for key, item in value.items()}
        return [outline(item) for item in value] if isinstance(value, list) else type(value)

    made = variations(rows, count)
    assert 1 <= len(made) <= count
    assert len(set(map(repr, made))) == len(made)
    given_rows = list({repr(row): row for row in rows[:count]}.values())
    assert repr(made[: len(given_rows)]) == repr(given_rows)
    outlines = [repr(outline(row)) for row in given_rows]
    assert all(repr(outline(row)) in outlines for row in made)
    assert repr(variations(rows, count)) == repr(made)


def test_large_rows_without_variations_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of zeros has no variations: attempts, of half a second each, end soon."""
    attempts = []
    made = row_variations.vary

    def counted(*args: Any) -> Any:
        attempts.append(1)
        return made(*args)

    monkeypatch.setattr(row_variations, "vary", counted)
    monkeypatch.setattr(row_variations, "_MOST_FRUITLESS_LEAVES", 250)
    zeros = [0.0] * 100
    assert variations([zeros], 6) == [zeros]
    assert len(attempts) == 3


@pytest.mark.parametrize(
    "row", [[0.0, 1.0, 0.5], [3, 0, 255, 7], {"a": 3, "b": 5.0}, 12.0, "the quick brown fox jumps"]
)
def test_most_rows_have_enough_variations(row: Any) -> None:
    """Maxima vary too: else a script that scales by the largest number would pass."""
    made = variations([row], 6)
    assert len(made) == 6
    if isinstance(row, list):
        assert len({max(other) for other in made}) > 1
