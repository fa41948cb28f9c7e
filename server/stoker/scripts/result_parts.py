"""Divides what `run` returned for the rows of several requests into a part for each request."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import orjson

_COMPACT: Final = (",", ":")
_WRITERS: Final[tuple[Callable[[Any], str], ...]] = (
    json.dumps,
    partial(json.dumps, separators=_COMPACT),
    partial(json.dumps, ensure_ascii=False),
    partial(json.dumps, ensure_ascii=False, separators=_COMPACT),
    lambda value: orjson.dumps(value).decode(),
    partial(json.dumps, indent=2),
    partial(json.dumps, indent=4),
)
"""The ways in which scripts write JSON themselves."""


class Unsplittable(ValueError):
    """A result does not show which part of it belongs to which rows."""


def divide_result(result: Any, counts: Sequence[int]) -> list[Any]:
    """Divide what `run` returned for rows of several requests.

    A list, tuple or numpy array has one entry for each row. In a dict every list belongs to the rows, except empty
    lists; all requests get the other values. A string that holds the JSON of such a result is read, divided and
    written in the same notation.

    Returns:
        For each request the value that `run` would have returned for its rows.

    Raises:
        Unsplittable: The result is none of these, or has another number of entries than rows.
    """
    bounds = list(pairwise(accumulate(counts, initial=0)))
    if isinstance(result, str):
        value, write = _read(result)
        return [write(part) for part in _divide(value, bounds, "the result")]
    return _divide(result, bounds, "the result")


def _divide(value: Any, bounds: Sequence[tuple[int, int]], name: str) -> list[Any]:
    rows = bounds[-1][1]
    if isinstance(value, dict):
        parts = _divide_dict(value, bounds, name)
        if parts is None:
            raise Unsplittable(f"{name} is a dict without an entry for each row")
        return parts
    if not isinstance(value, list | tuple | np.ndarray) or (isinstance(value, np.ndarray) and not value.ndim):
        raise Unsplittable(f"{name} is {type(value).__name__}, which has no entry for each row")
    if len(value) != rows:
        raise Unsplittable(f"{name} has {len(value)} entries for {rows} rows")
    return [value[start:stop] for start, stop in bounds]


def _divide_dict(
    value: dict[Any, Any], bounds: Sequence[tuple[int, int]], name: str
) -> list[dict[Any, Any]] | None:
    """Divide the values that belong to the rows, and give the others to all; None if no value belongs to the rows."""
    parts: list[dict[Any, Any]] = [{} for _ in bounds]
    divided = False
    for key, item in value.items():
        shares: list[Any] | None = None
        if isinstance(item, dict):
            shares = _divide_dict(item, bounds, f"{name}[{key!r}]")
        elif not _is_single(item):
            shares = _divide(item, bounds, f"{name}[{key!r}]")
        divided = divided or shares is not None
        for part, share in zip(parts, shares or [item] * len(bounds), strict=True):
            part[key] = share
    return parts if divided else None


def _is_single(value: Any) -> bool:
    # There is at least one row, so an empty list belongs to none.
    empty = isinstance(value, list | tuple) and not value
    return value is None or empty or isinstance(value, bool | int | float | str | np.generic)


def _read(text: str) -> tuple[Any, Callable[[Any], str]]:
    """Read JSON, and find the function that writes it in the same notation."""
    try:
        value = json.loads(text)
    except ValueError:
        raise Unsplittable("the result is a text that is not JSON") from None
    for write in _WRITERS:
        try:
            if write(value) == text:
                return value, write
        except TypeError:
            # orjson takes only numbers of 64 bits.
            continue
    raise Unsplittable("the result is JSON in a notation that cannot be written again")
