"""Reasons that several rules give for mixed or undecided rows, worded in one place."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ALIGNED",
    "ANOTHER_AXIS",
    "BY_PLACE",
    "CONSTANT_BY_PLACE",
    "MEAN_OF_ALL",
    "SCALE_OF_ALL",
    "UNKNOWN_AXIS",
]

BY_PLACE: Final = "treats rows by their place in the batch"
ANOTHER_AXIS: Final = "takes its rows along another axis than the first"
CONSTANT_BY_PLACE: Final = "takes a constant with something for each place in the batch"
ALIGNED: Final = "is of a version whose sizes are aligned by an attribute"
SCALE_OF_ALL: Final = "takes its scale from all rows of the batch"
UNKNOWN_AXIS: Final = "makes an axis of which it is not known how it holds the rows"
MEAN_OF_ALL: Final = "takes mean and variance from all rows of the batch"
