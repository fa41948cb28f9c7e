"""Companions of rows, which reveal whether one row affects another.

Companions are as different from an ordinary row as the model accepts: zeros, huge and negative numbers, NaN,
infinities, denormal numbers, integers up to the limits that the model accepts, texts of other lengths and scripts.
They are deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.isolation.difference import same_bits
from stoker.tensors import number_kind

Row = Mapping[str, np.ndarray]
"""One row of each input, `[1, *row_shape]`."""

NON_FINITE: Final = ("nan", "infinite", "negative infinite")
_FLOAT_KINDS: Final = ("zero", "large", "huge", "negative", *NON_FINITE, "denormal")
SENTENCES: Final = (
    b"the of and to in is you that it he was for on are as with his they at be this have from",
    b"how many good days will she take from us",
    b"one had by word but not what all were we when your can said there use an each which do their time if up other "
    b"about out",
)
"""Texts with different numbers of common words: the sum over a single word would not depend on the summing order."""
_TEXTS: Final = {
    "empty": [b""],
    "short": [b"a"],
    "words": [b" ".join(SENTENCES)],
    "long": [b"stoker " * 143],
    "foreign": ["Ωмега 漢字 \U0001f525".encode(), b"stoker"],
}
LADDER: Final = (3, 10, 100, 1000, 30_000, 10_000_000)
"""Integers tried in ascending order before the largest: a model may allocate memory for that many elements."""
ROWS: Final = 3
"""The number of ordinary rows of a test."""


class Companions:
    """Test rows of one model, and the companions to put beside them.

    Attributes:
        rows: Three ordinary rows; they are equal if no other row can be derived from the given one.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        """Take up to three rows that the model answers; missing ones are permutations of the given ones."""
        self.rows = list(rows[:ROWS])
        while len(self.rows) < ROWS:
            self.rows.append(_reordered(self.rows[0], len(self.rows)))

    @property
    def takes_texts(self) -> bool:
        """Whether a row has string inputs."""
        return any(array.dtype == object for array in self.rows[0].values())

    @property
    def takes_floats(self) -> bool:
        """Whether a row has floating-point inputs, which may hold NaN and infinities."""
        return any(number_kind(array.dtype) == "f" for array in self.rows[0].values())

    def kinds(self) -> list[str]:
        """Return the kinds of companions that exist for these inputs, as named for `grades`."""
        found: dict[str, None] = {"other": None, "same": None}
        for array in self.rows[0].values():
            if number_kind(array.dtype) == "f":
                found.update(dict.fromkeys(_FLOAT_KINDS))
            elif array.dtype == object:
                found.update(dict.fromkeys(_TEXTS))
            else:
                found.update(dict.fromkeys(("zero", "high", "low")))
        return list(found)

    def grades(self, kind: str) -> Iterator[Row]:
        """Yield the companions of a kind, from the mildest to the most extreme.

        Inputs for which the kind does not exist, such as strings for a kind of number, keep their ordinary values.
        """
        if kind in ("other", "same"):
            yield self.rows[2 if kind == "other" else 0]
            return
        base = self.rows[1]
        steps = max(len(_grades(kind, array)) for array in base.values())
        for step in range(steps):
            row = {}
            for name, array in base.items():
                grades = _grades(kind, array)
                row[name] = grades[min(step, len(grades) - 1)] if grades else array
            yield row


def same_rows(one: Row, other: Row) -> bool:
    """Whether two rows are bit-identical."""
    return all(same_bits(array, other[name]) for name, array in one.items())


def _grades(kind: str, array: np.ndarray) -> list[np.ndarray]:
    if array.dtype == object:
        return [text_array(array.shape, _TEXTS[kind])] if kind in _TEXTS else []
    if number_kind(array.dtype) == "f":
        return [_float(kind, array)] if kind in _FLOAT_KINDS else []
    if kind == "zero":
        return [np.zeros_like(array)]
    if array.dtype.kind == "b":
        return [np.ones_like(array)] if kind == "high" else []
    ends = np.iinfo(array.dtype)
    if kind == "high":
        return [np.full_like(array, number) for number in (*(n for n in LADDER if n < ends.max), ends.max)]
    if kind == "low" and ends.min < 0:
        return [np.full_like(array, number) for number in (-1, ends.min)]
    return []


def _float(kind: str, array: np.ndarray) -> np.ndarray:
    limits = _limits(array.dtype)
    if kind == "large":
        with np.errstate(over="ignore"):
            return np.asarray(array * array.dtype.type(1000))
    number = {
        "zero": 0.0,
        "huge": float(limits.max) / 4,
        "negative": max(-1e6, float(limits.min) / 2),
        "nan": np.nan,
        "infinite": np.inf,
        "negative infinite": -np.inf,
        "denormal": limits.smallest_subnormal,
    }[kind]
    return np.full_like(array, number)


def _limits(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.finfo(dtype)
    from ml_dtypes import finfo

    return finfo(dtype)  # type: ignore[no-untyped-call]  # it has no annotations


def _reordered(row: Row, seed: int) -> Row:
    """Return a row with the values of another one permuted: the model accepts each of them."""
    random = np.random.default_rng((20260721, seed))
    reordered = {}
    for name, array in row.items():
        flat = array.reshape(-1)
        other = random.permutation(flat)
        if number_kind(array.dtype) == "f" and np.array_equal(other, flat):
            other = flat / (1 + seed)
        reordered[name] = other.reshape(array.shape).astype(array.dtype, copy=False)
    return reordered


def text_array(shape: tuple[int, ...], contents: Sequence[bytes]) -> np.ndarray:
    """Return an array of texts, which repeat the given ones."""
    texts = np.empty(shape, object)
    texts.reshape(-1)[:] = [contents[place % len(contents)] for place in range(texts.size)]
    return texts
