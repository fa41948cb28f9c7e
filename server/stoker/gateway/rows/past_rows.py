"""Rows of requests that have been answered, which still hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stoker.arena import Arena

__all__ = ["done_since", "without_past"]

_LOOKED_AT: Final = 4


def done_since(arena: Arena, free: Sequence[int], since_ns: int, most: int) -> list[int]:
    """Free rows whose last request the device has answered after a time, those first that were freed last.

    Until another request leases it, such a row holds what it was queued with and its answer. Long rows of bytes
    have given their memory back, and are left out; so are rows in which something else was read in vain.

    Args:
        arena: The rows.
        free: The numbers of those that are free, in the order in which they were freed.
        since_ns: The time, as `time.monotonic_ns`.
        most: How many at most; four times as many free rows are looked at.
    """
    latest = free[: -_LOOKED_AT * most - 1 : -1]
    found = [
        number for number in latest if arena.finished_ns[number] > since_ns and not arena.outcome[number]
    ]
    return [number for number in found[:most] if arena.keeps(number)]


def without_past(arena: Arena, numbers: list[int]) -> list[int]:
    """Return rows whose request could not be queued: what they held of their last ones may have been written over."""
    arena.finished_ns[numbers] = 0
    return numbers
