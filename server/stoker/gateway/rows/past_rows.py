"""Free rows that still hold the request that they had last, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stoker.arena import Arena

__all__ = ["done_since", "without_past"]

_LOOKED_AT: Final = 4


def done_since(arena: Arena, free: Sequence[int], since_ns: int, most: int) -> list[int]:
    """Free rows whose last request was answered after a given time, in the order in which they were freed.

    Until another request leases it, a free row still holds its inputs and outputs. Left out are rows of long
    variable data, whose memory has been returned, and rows into which a body was decoded but not queued.

    Args:
        arena: The rows.
        free: The numbers of the free rows, in the order in which they were freed.
        since_ns: The time, as `time.monotonic_ns`.
        most: How many rows at most; four times as many free rows are examined.
    """
    latest = free[: -_LOOKED_AT * most - 1 : -1]
    found = [
        number for number in latest if arena.finished_ns[number] > since_ns and not arena.outcome[number]
    ]
    return [number for number in found[:most] if arena.keeps(number)]


def without_past(arena: Arena, numbers: list[int]) -> list[int]:
    """Free rows whose request could not be queued; what they held before may have been overwritten."""
    arena.finished_ns[numbers] = 0
    return numbers
