"""Makes further rows from a few: other numbers of the same kind in the same places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

_ATTEMPTS: Final = 8
_MOST_FRUITLESS_LEAVES: Final = 500_000
"""A row of zeros has no variations, and attempts take seconds for large rows."""


def variations(rows: Sequence[Any], count: int) -> list[Any]:
    """Return up to `count` different rows: first the given rows, then variations of them.

    Numbers change places with others of their row, are halved, or come from the same place of another row; whole
    numbers stay whole, and no number grows. Words of a text change places. The result is the same each time. Attempts
    are bounded, so there may be fewer rows.
    """
    random = np.random.default_rng(0)
    made: dict[str, Any] = {repr(row): row for row in rows[:count]}
    fruitless_leaves = 0
    for attempt in range(_ATTEMPTS * count):
        if len(made) >= count or fruitless_leaves > _MOST_FRUITLESS_LEAVES:
            break
        known = list(made.values())
        parent, other = random.integers(len(known), size=2).tolist()
        varied = vary(known[parent], known[other], attempt, random)
        if made.setdefault(repr(varied), varied) is varied:
            fruitless_leaves = 0
        else:
            fruitless_leaves += sum(1 for _ in _leaves(varied))
    return list(made.values())


def vary(row: Any, other: Any, attempt: int, random: np.random.Generator) -> Any:
    """Return a variation of a row, in turn: halved leaves, leaves in other places, leaves of another row."""
    leaves, others = list(_leaves(row)), list(_leaves(other))
    match attempt % 3:
        case 0:
            leaves = [_halved(leaf) for leaf in leaves]
        case 1:
            _change_places(leaves, random)
        case 2 if len(others) == len(leaves):
            chosen = random.random(len(leaves)) < 0.5
            leaves = [
                theirs if pick and type(theirs) is type(mine) else mine
                for mine, theirs, pick in zip(leaves, others, chosen.tolist(), strict=True)
            ]
    return _refilled(row, iter(leaves))


def _change_places(leaves: list[Any], random: np.random.Generator) -> None:
    for kind in (int, float):
        places = [place for place, leaf in enumerate(leaves) if type(leaf) is kind]
        values = [leaves[place] for place in random.permutation(places).tolist()]
        for place, value in zip(places, values, strict=True):
            leaves[place] = value
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, str):
            leaves[place] = " ".join(random.permutation(leaf.split(" ")).tolist())


def _halved(leaf: Any) -> Any:
    if type(leaf) is int:
        return leaf // 2
    return leaf / 2 if type(leaf) is float else leaf


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _refilled(value: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(value, dict):
        return {key: _refilled(item, leaves) for key, item in value.items()}
    if isinstance(value, list):
        return [_refilled(item, leaves) for item in value]
    return next(leaves)
