"""The reader of JSON rows in C++, where it is installed and wanted."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

__all__ = ["SWITCH", "float32_rows_into", "native_rows_note"]

SWITCH: Final = "STOKER_NATIVE"
"""An environment variable: `0` leaves it out, so that what it does can be told from what everything else does."""


def _find() -> Callable[..., bytes | None] | None:
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        # Not the module: an earlier one has another function.
        from stoker_native import float32_rows_into as found
    except ImportError:
        return None
    reader: Callable[..., bytes | None] = found
    return reader


float32_rows_into: Final = _find()
"""Returns the numbers of `{"data": [row, ...]}` as float32, native byte order; None for any body but such rows.

It takes the body, memory for one row or None, and the sizes of a row. A single row is written into that memory, and
what is returned then is empty; where None is returned, what was there is lost all the same. None itself where it is
not used.
"""


def native_rows_note() -> str:
    """Return in a line what reads the rows of numbers in JSON."""
    if float32_rows_into is not None:
        return "rows of float32 are read in C++, by stoker-native"
    if os.environ.get(SWITCH) == "0":
        return f"rows are read by simdjson: {SWITCH}=0 leaves stoker-native out"
    return "rows are read by simdjson: stoker-native, which reads those of float32 sooner, is not installed"
