"""Rows to test a model with: ordinary ones, and companions that reveal whether one row affects another.

Companions are as different from an ordinary row as the model accepts: zeros, huge and negative numbers, NaN,
infinities, denormal numbers, integers up to the limits of what the model accepts, texts of other lengths and scripts.
They are deterministic.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.isolation.difference import same_bits
from stoker.system.resources import require_memory
from stoker.tensors import TensorInfo, number_kind

Row = Mapping[str, np.ndarray]
"""One row of each input, `[1, *row_shape]`."""

NON_FINITE: Final = ("nan", "infinite", "negative infinite")
_FLOAT_KINDS: Final = ("zero", "large", "huge", "negative", *NON_FINITE, "denormal")
_SENTENCES: Final = (
    b"the of and to in is you that it he was for on are as with his they at be this have from",
    b"how many good days will she take from us",
    b"one had by word but not what all were we when your can said there use an each which do their time if up other "
    b"about out",
)
"""Texts with different numbers of common words: the sum over a single word would not depend on the summing order."""
_TEXTS: Final = {
    "empty": [b""],
    "short": [b"a"],
    "words": [b" ".join(_SENTENCES)],
    "long": [b"stoker " * 143],
    "foreign": ["Ωмега 漢字 \U0001f525".encode(), b"stoker"],
}
_ROWS: Final = 3
_FREE_SIZES: Final = (8, 32, 64, 1, 128, 224)
"""Sizes tried for free axes: some models accept only multiples of 32, some only the sizes they were trained with."""
_LADDER: Final = (3, 10, 100, 1000, 30_000, 10_000_000)
"""Integers tried in ascending order before the largest: a model may allocate that many of something."""


def made_up_rows(inputs: Sequence[TensorInfo]) -> Iterator[Companions]:
    """Yield several ways to make up rows, the most plausible first; a model may refuse some of them.

    Raises:
        MemoryError: There is no memory for them and the batches that they are put into.
    """
    _check_memory(inputs)
    sizes = _FREE_SIZES if any(-1 in info.shape[1:] for info in inputs) else _FREE_SIZES[:1]
    has_texts = any(info.dtype == "string" for info in inputs)
    for size in sizes:
        for texts in (_SENTENCES, ()) if has_texts else ((),):
            yield Companions([_made_up(inputs, size, seed, texts[seed : seed + 1]) for seed in range(_ROWS)])
    if has_texts:
        pictures = [_png(seed) for seed in range(_ROWS)]
        for contents in (pictures, [b""] * _ROWS):
            yield Companions(
                [_made_up(inputs, sizes[0], seed, contents[seed : seed + 1]) for seed in range(_ROWS)]
            )


def _check_memory(inputs: Sequence[TensorInfo]) -> None:
    """Check that there is memory for rows of them, one more of 8-byte numbers, and batches of the rows."""
    elements = {info.name: math.prod(abs(size) for size in info.shape[1:]) for info in inputs}
    needed = sum(elements[info.name] * (2 * _ROWS * _item_bytes(info.dtype) + 8) for info in inputs)
    named = ", ".join(f"{name} ({count:,} numbers)" for name, count in elements.items())
    require_memory(needed, f"trying {_ROWS} rows of {named}")


def _item_bytes(dtype: str) -> int:
    return np.dtype(object if dtype == "string" else dtype).itemsize


def sample_feeds(inputs: Sequence[TensorInfo], rows: int) -> dict[str, np.ndarray]:
    """Make plausible inputs with up to three different rows; deterministic. Free sizes other than the batch are 8.

    Raises:
        MemoryError: There is no memory for them.
    """
    _check_memory(inputs)
    made = [_made_up(inputs, _FREE_SIZES[0], seed) for seed in range(rows)]
    return {info.name: np.concatenate([row[info.name] for row in made]) for info in inputs}


def _made_up(inputs: Sequence[TensorInfo], free_size: int, seed: int, texts: Sequence[bytes] = ()) -> Row:
    """Make one plausible row, deterministic for a seed.

    Args:
        texts: The content of string inputs; by default words.
    """
    random = np.random.default_rng((20260721, seed))
    row = {}
    for info in inputs:
        shape = (1, *(free_size if size < 0 else size for size in info.shape[1:]))
        if info.dtype == "string":
            row[info.name] = _texts(shape, texts or [f"word{seed}".encode()])
        elif info.kind == "f":
            row[info.name] = random.random(shape).astype(info.dtype)
        else:
            # Small enough to be a valid index into any table that the model looks up.
            row[info.name] = random.integers(0, 2, shape).astype(info.dtype)
    return row


class Companions:
    """Test rows of one model, and the companions to put beside them.

    Attributes:
        rows: Three ordinary rows; they may be equal where no other row could be derived from the given one.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        """Take up to three rows that the model answers; missing ones are permutations of the given ones."""
        self.rows = list(rows[:_ROWS])
        while len(self.rows) < _ROWS:
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
        """The kinds of companions that exist for these inputs, as named for `grades`."""
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
        return [_texts(array.shape, _TEXTS[kind])] if kind in _TEXTS else []
    if number_kind(array.dtype) == "f":
        return [_float(kind, array)] if kind in _FLOAT_KINDS else []
    if kind == "zero":
        return [np.zeros_like(array)]
    if array.dtype.kind == "b":
        return [np.ones_like(array)] if kind == "high" else []
    ends = np.iinfo(array.dtype)
    if kind == "high":
        return [np.full_like(array, number) for number in (*(n for n in _LADDER if n < ends.max), ends.max)]
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
    """A row with the values of another one permuted, so that each value is one that the model accepts."""
    random = np.random.default_rng((20260721, seed))
    reordered = {}
    for name, array in row.items():
        flat = array.reshape(-1)
        other = random.permutation(flat)
        if number_kind(array.dtype) == "f" and np.array_equal(other, flat):
            other = flat / (1 + seed)
        reordered[name] = other.reshape(array.shape).astype(array.dtype, copy=False)
    return reordered


def _texts(shape: tuple[int, ...], contents: Sequence[bytes]) -> np.ndarray:
    texts = np.empty(shape, object)
    texts.reshape(-1)[:] = [contents[place % len(contents)] for place in range(texts.size)]
    return texts


def _png(seed: int) -> bytes:
    """An encoded image of 8 × 8 pixels of one colour, for models that take encoded images."""
    colour = bytes((40 + 60 * seed, 120, 200 - 50 * seed))
    pixels = zlib.compress((b"\0" + colour * 8) * 8)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )
