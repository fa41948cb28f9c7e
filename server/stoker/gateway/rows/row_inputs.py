"""How the numbers of requests get into the rows of an arena, and which numbers fit there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stoker.arena import Arena
from stoker.errors import InvalidInput
from stoker.gateway.rows.ticket import Rows
from stoker.tensors import TensorSpec


class Range(NamedTuple):
    """The numbers that an input holds, from `least` to `most`."""

    place: int
    spec: TensorSpec
    least: int
    most: int


def narrow_ranges(inputs: Sequence[TensorSpec]) -> list[Range]:
    """Return the ranges of the inputs that are narrower than the 64-bit integers of JSON, and of `bfloat16`."""
    return [
        Range(place, spec, *_limits(spec))
        for place, spec in enumerate(inputs)
        if spec.dtype == "bfloat16" or (spec.kind in "iu" and spec.dtype not in ("int64", "uint64"))
    ]


def _limits(spec: TensorSpec) -> tuple[int, int]:
    if spec.kind != "f":
        whole = np.iinfo(spec.dtype)
        return int(whole.min), int(whole.max)
    # numpy raises where a number overflows, but not where it becomes infinite by rounding to bfloat16.
    from ml_dtypes import finfo

    most = int(float(finfo(spec.numpy_dtype).max))  # type: ignore[no-untyped-call]  # it has no annotations
    return -most, most


def check_ranges(ranges: Sequence[Range], rows: Rows) -> None:
    """Refuse rows with a number that does not fit; arrays that have the input's dtype already are not checked."""
    for place, spec, least, most in ranges:
        values = rows[place]
        if values.dtype != spec.numpy_dtype and values.size and (values.min() < least or values.max() > most):
            raise InvalidInput(f"A number of {spec.name!r} does not fit {spec.dtype}.")


class RowInputs:
    """The inputs of the rows of one arena.

    Attributes:
        memory: The memory of all rows, into which a decoder may write a row; None if there is no such room.
        row_bytes: The bytes of a row in `memory`.
    """

    __slots__ = ("_arrays", "_only_array", "_ranges", "memory", "row_bytes")

    def __init__(self, arena: Arena) -> None:
        self._arrays = arena.inputs
        self._only_array = arena.only_input
        self._ranges = narrow_ranges(arena.signature.inputs)
        self.memory, self.row_bytes = arena.only_memory

    def check(self, rows: Rows) -> None:
        """Raise InvalidInput for an integer that does not fit its input."""
        if self._ranges:
            check_ranges(self._ranges, rows)

    def write_one(self, number: int, rows: Rows) -> None:
        """Write the only row of a request; raises FloatingPointError where a number does not fit."""
        if self._only_array is not None:
            self._only_array[number] = rows[0]
        else:
            for stored, values in zip(self._arrays, rows, strict=True):
                stored[number] = values[0]

    def write(self, index: np.ndarray, rows: Rows) -> None:
        """Write the rows of a request to these numbers; raises FloatingPointError where a number does not fit."""
        for stored, values in zip(self._arrays, rows, strict=True):
            stored[index] = values
