"""Integers that do not fit an input's dtype: numpy would silently wrap them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stoker.errors import InvalidInput
from stoker.gateway.rows.ticket import Rows
from stoker.tensors import TensorSpec

__all__ = ["Range", "check_overflows_raise", "check_ranges", "ranges_of"]


class Range(NamedTuple):
    """The range of integers that an input holds.

    Attributes:
        place: The index of the input.
        spec: The input.
        least, most: The smallest and the largest integer.
    """

    place: int
    spec: TensorSpec
    least: int
    most: int


def check_overflows_raise() -> None:
    """Check that numpy raises on float overflow in this context.

    Raises:
        RuntimeError: It does not.
    """
    if np.geterr()["over"] != "raise":
        # Otherwise a number too large for float32 would silently become infinity.
        raise RuntimeError("numpy has to raise where numbers overflow: call np.seterr(over='raise') before")


def ranges_of(inputs: Sequence[TensorSpec]) -> list[Range]:
    """Return the ranges of the inputs that are narrower than the 64-bit integers of JSON."""
    limits = [
        (place, spec, np.iinfo(spec.dtype))
        for place, spec in enumerate(inputs)
        if np.dtype(spec.dtype).kind in "iu" and spec.dtype not in ("int64", "uint64")
    ]
    return [Range(place, spec, int(info.min), int(info.max)) for place, spec, info in limits]


def check_ranges(ranges: Sequence[Range], rows: Rows) -> None:
    """Refuse rows with an integer that does not fit; arrays that have the input's dtype already are not checked.

    Raises:
        InvalidInput: There is such an integer.
    """
    for place, spec, least, most in ranges:
        values = rows[place]
        if values.dtype != spec.numpy_dtype and values.size and (values.min() < least or values.max() > most):
            raise InvalidInput(f"A number of {spec.name!r} does not fit {spec.dtype}.")
