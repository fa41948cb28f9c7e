"""A row's caller, tier and weight packed into one number, used in arenas, boards and device queues.

The lowest bits are the caller's number, the next ones the tier; the two form the *class* of a row. In an arena the
caller's weight is stored in the bits above.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CALLER_BITS",
    "CALLER_MASK",
    "NORMAL",
    "NORMAL_TIER",
    "TIER_MASK",
    "WEIGHT_BITS",
    "caller_of",
    "tier_of",
]

NORMAL_TIER: Final = 1
CALLER_BITS: Final = 16
WEIGHT_BITS: Final = 32
"""`placed` is `weight << WEIGHT_BITS | tier << CALLER_BITS | caller`, the weight in thousandths, or 0 for 1."""
CALLER_MASK: Final = (1 << CALLER_BITS) - 1
"""Mask of the caller's bits."""
TIER_MASK: Final = (1 << WEIGHT_BITS - CALLER_BITS) - 1
"""Mask of the tier's bits after shifting out the caller's."""
NORMAL: Final = NORMAL_TIER << CALLER_BITS
"""The default class: tier normal, caller 0."""


def tier_of(placed: int) -> int:
    """The tier of a class."""
    return placed >> CALLER_BITS


def caller_of(placed: int) -> int:
    """The caller's number of a class."""
    return placed & CALLER_MASK
