"""Whose a row is, and how urgent, in one number: what arenas, boards and the queues of devices have of it.

The lowest bits are the caller's number, those above it the tier; the two are the *class* of a row. In an arena the
caller's weight stands above them.
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
"""The bits of the caller."""
TIER_MASK: Final = (1 << WEIGHT_BITS - CALLER_BITS) - 1
"""The bits of the tier, once those of the caller are gone."""
NORMAL: Final = NORMAL_TIER << CALLER_BITS
"""The class of rows of which nothing is said: of the tier normal and the caller 0."""


def tier_of(placed: int) -> int:
    """The tier of a class."""
    return placed >> CALLER_BITS


def caller_of(placed: int) -> int:
    """The number of a class's caller."""
    return placed & CALLER_MASK
