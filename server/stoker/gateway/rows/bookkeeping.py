"""Bookkeeping of an exchange's rows beside their tickets: free numbers, callers, speed, and unused memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.arena import CALLER_MASK, Arena
from stoker.errors import InvalidInput
from stoker.gateway.rows.ticket import Rows, Ticket
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
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


_INTERVAL_NS: Final = 500_000_000
_MAX_RETRY_AFTER_MS: Final = 60_000


class ServiceRate:
    """Rows per second, over intervals in which the device had rows to run."""

    def __init__(self, now_ns: int) -> None:
        self._rows_s = 0.0
        self._since_ns, self._done_rows = now_ns, 0

    def update(self, now_ns: int, leased_rows: int, done_rows: int) -> None:
        """Update the rate."""
        if not leased_rows:
            self._since_ns, self._done_rows = now_ns, done_rows
        elif now_ns - self._since_ns >= _INTERVAL_NS:
            rows_s = (done_rows - self._done_rows) * 1e9 / (now_ns - self._since_ns)
            self._rows_s = rows_s if not self._rows_s else (rows_s + self._rows_s) / 2
            self._since_ns, self._done_rows = now_ns, done_rows

    def retry_after_ms(self, leased_rows: int) -> int:
        """Return the milliseconds in which this many rows are served: at least 1, at most a minute."""
        wait_s = leased_rows / self._rows_s if self._rows_s else 1.0
        return min(_MAX_RETRY_AFTER_MS, max(1, math.ceil(wait_s * 1000)))


_FIRST_COLUMN: Final = 3
"""The first of the columns for caller and urgency."""
_CALLER_COLUMN: Final = 2
"""The column of the caller."""
_FREE_RATIO: Final = 2
"""A caller must hold fewer rows than this many times the free rows."""
_RECOUNT_SHARE: Final = 64
"""Rows are counted again when a 64th of them has been leased or freed."""


class UrgencyColumns:
    """The frontend's side of the caller and urgency columns of one arena.

    Attributes:
        is_written: Whether the columns are written; from then on they are for each request.
        has_callers: Whether a request of a named caller has come.
    """

    __slots__ = ("_columns", "_counted_free", "_flag", "_held", "has_callers", "is_written")

    def __init__(self, arena: Arena) -> None:
        self.is_written = self.has_callers = False
        self._held, self._counted_free = np.zeros(1, np.int64), -len(arena.queued)
        self._columns = arena.queued[:, _FIRST_COLUMN:]
        self._flag = arena.told

    def write(self, ticket: Ticket) -> None:
        """Write caller and urgency of a ticket's rows, before the device is notified of them."""
        if not self.is_written:
            # Rows that the device already has were queued without them.
            self._columns[:] = (0, 1, DEFAULT_URGENCY.placed)
            self._flag[0] = self.is_written = True
        urgency = ticket.urgency or DEFAULT_URGENCY
        self._columns[ticket.row_numbers] = (ticket.target_ns, ticket.rows, urgency.placed)
        if urgency.caller.number:
            self.has_callers = True

    def exceeds_share(self, ticket: Ticket, free: Sequence[int]) -> bool:
        """Whether a ticket's caller holds at least twice as many rows as are free, where there are several callers.

        So a third of the rows remains for others, and a caller that arrives during another one's flood finds some.
        """
        capacity = len(self._columns)
        if len(free) * (_FREE_RATIO + 1) >= capacity:
            return False
        if abs(len(free) - self._counted_free) * _RECOUNT_SHARE >= capacity:
            taken = np.ones(capacity, bool)
            taken[np.array(free, np.int64)] = False
            self._held = np.bincount(self._columns[taken, _CALLER_COLUMN] & CALLER_MASK)
            self._counted_free = len(free)
        caller = (ticket.urgency or DEFAULT_URGENCY).caller.number
        return caller < len(self._held) and int(self._held[caller]) >= _FREE_RATIO * len(free)


_UNUSED_NS: Final = 1_000_000_000
_WARM_ROWS: Final = 64
"""This many rows beside those in use keep their memory."""


class PageReclaimer:
    """Returns the memory of an arena's free rows to the system, one row at a time."""

    def __init__(self, arena: Arena, now_ns: int) -> None:
        self._arena = arena
        self._cold_rows, self._untouched_rows = 0, arena.capacity
        self._since_ns = now_ns

    def reclaim(self, free: list[int], now_ns: int) -> None:
        """Return the memory of one row that has not been needed for a second.

        Args:
            free: The free rows; they are leased from the end of the list, and put back there.
        """
        self._untouched_rows = min(self._untouched_rows, len(free))
        if now_ns - self._since_ns >= _UNUSED_NS:
            self._cold_rows = max(0, self._untouched_rows - _WARM_ROWS)
            self._untouched_rows, self._since_ns = len(free), now_ns
        if self._cold_rows and not self._arena.give_back_kept_pages(free[: self._cold_rows]):
            self._cold_rows = 0


_EXAMINED: Final = 4


def done_since(arena: Arena, free: Sequence[int], since_ns: int, most: int) -> list[int]:
    """Free rows whose last request was answered after a given time, in the order in which they were freed.

    Until another request leases it, a free row still holds its inputs and outputs. Left out are rows of long
    variable data, whose memory has been returned, and rows into which a body was decoded but not queued.

    Args:
        most: How many rows at most; four times as many free rows are examined.
    """
    latest = free[: -_EXAMINED * most - 1 : -1]
    found = [
        number for number in latest if arena.finished_ns[number] > since_ns and not arena.outcome[number]
    ]
    return [number for number in found[:most] if arena.keeps(number)]
