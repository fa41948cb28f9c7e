"""Integers that do not fit an input: numpy would store what is left of them, and nobody would notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stoker.errors import InvalidInput
from stoker.gateway.rows.ticket import Rows
from stoker.tensors import TensorSpec

__all__ = ["Range", "check_overflows_raise", "check_ranges", "ranges_of"]


class Range(NamedTuple):
    """The numbers that fit an input.

    Attributes:
        place: Which input it is.
        spec: What it takes.
        least, most: The smallest and the largest number.
    """

    place: int
    spec: TensorSpec
    least: int
    most: int


def check_overflows_raise() -> None:
    """Make sure that floats which are too large are noticed, here and now.

    Raises:
        RuntimeError: They are not.
    """
    if np.geterr()["over"] != "raise":
        # A number that is too large for float32 would become infinity, and nobody would notice.
        raise RuntimeError("numpy has to raise where numbers overflow: call np.seterr(over='raise') before")


def ranges_of(inputs: Sequence[TensorSpec]) -> list[Range]:
    """Return the ranges of those inputs that are narrower than the integers of JSON, which are 64 bits wide."""
    limits = [
        (place, spec, np.iinfo(spec.dtype))
        for place, spec in enumerate(inputs)
        if np.dtype(spec.dtype).kind in "iu" and spec.dtype not in ("int64", "uint64")
    ]
    return [Range(place, spec, int(info.min), int(info.max)) for place, spec, info in limits]


def check_ranges(ranges: Sequence[Range], rows: Rows) -> None:
    """Refuse rows with a number that does not fit; those that have the input's dtype already need not be looked at.

    Raises:
        InvalidInput: There is one.
    """
    for place, spec, least, most in ranges:
        values = rows[place]
        if values.dtype != spec.numpy_dtype and values.size and (values.min() < least or values.max() > most):
            raise InvalidInput(f"A number of {spec.name!r} does not fit {spec.dtype}.")
