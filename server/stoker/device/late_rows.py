"""Waiting rows that will miss their targets: they run when nothing else waits, or expire."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from stoker.device.row_blocks import NEVER_NS, Deadlines, Part, cut, least, refresh_deadlines, without_lane


class LateRows:
    """Rows that will miss their targets, in the order in which that was found.

    Attributes:
        rows: How many.
        parts: The rows.
    """

    __slots__ = ("_first_expiry_ns", "parts", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.parts: deque[Part] = deque()
        # A lower bound of all deadlines: before it no row has expired.
        self._first_expiry_ns = NEVER_NS

    def add(self, part: Part, first_deadline_ns: int) -> None:
        """Add rows; `first_deadline_ns` is a lower bound of their deadlines."""
        self.add_all((part,), first_deadline_ns)

    def add_all(self, parts: Collection[Part], first_deadline_ns: int) -> None:
        """As `add`, for several parts."""
        self.parts.extend(parts)
        self.rows += sum([part.rows for part in parts])
        self._first_expiry_ns = min(self._first_expiry_ns, first_deadline_ns)

    def take_first(self, rows: int) -> list[Part]:
        """Remove and return the first rows."""
        self.rows -= rows
        return cut(self.parts, rows)

    def may_have_expired(self, now_ns: int) -> bool:
        """Whether the deadline of a row may have passed."""
        return self._first_expiry_ns <= now_ns

    def take_expired(self, now_ns: int) -> list[Part]:
        """Remove and return the rows whose deadlines have passed."""
        if not self.may_have_expired(now_ns):
            return []
        parts, expired = self.parts, []
        self.clear()
        for part in parts:
            late = part.deadline_ns <= now_ns
            if late.any():
                expired.append(part.part(late))
            if not late.all():
                kept = part.part(~late) if late.any() else part
                self.add(kept, least(kept.deadline_ns))
        return expired

    def first_deadline_ns(self, rows: int) -> int:
        """The earliest deadline of the first `rows` rows."""
        parts = deque(self.parts)
        return min(least(part.deadline_ns) for part in cut(parts, rows))

    def refresh(self, deadlines: Deadlines) -> None:
        """Read again which rows have been cancelled."""
        for part in self.parts:
            if refresh_deadlines(part, deadlines):
                self._first_expiry_ns = min(self._first_expiry_ns, least(part.deadline_ns))

    def drop_lane(self, lane: int) -> None:
        """Remove the rows of a lane."""
        parts = self.parts
        self.clear()
        for part in without_lane(parts, lane):
            self.add(part, least(part.deadline_ns))

    def clear(self) -> None:
        """Remove all rows."""
        self.rows, self.parts, self._first_expiry_ns = 0, deque(), NEVER_NS
