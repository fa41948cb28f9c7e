"""The memory that large bodies of requests may take together while they are received and scored."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from stoker.errors import Overloaded

__all__ = ["LARGE_BODY_BYTES", "Allowance", "BodyBudget"]

LARGE_BODY_BYTES: Final = 1 << 20
"""Bodies up to this size are not counted: what a connection may send unasked is as large."""


class BodyBudget:
    """What the large bodies of one frontend may add up to.

    Attributes:
        left_bytes: What they may take still.
    """

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self.left_bytes = total_bytes

    def reserve(self, size_bytes: int) -> bool:
        """Take a large body's memory before it is received; False if too many are under way."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Give a large body's memory back."""
        self.left_bytes += size_bytes


class Allowance:
    """What one request takes from the budget, until its context is left."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.release(self._taken_bytes)
        self._taken_bytes = 0

    def cover(self, size_bytes: int) -> None:
        """Make sure that a body of this size is covered; small ones are by themselves.

        Raises:
            Overloaded: The bodies being received would be larger than the budget.
        """
        if size_bytes <= max(LARGE_BODY_BYTES, self._taken_bytes):
            return
        # In whole steps, so that a body that grows piece by piece does not come here with each of them.
        wanted = -(-size_bytes // LARGE_BODY_BYTES) * LARGE_BODY_BYTES
        if not self._budget.reserve(wanted - self._taken_bytes):
            raise Overloaded("Too many large request bodies are being received.", retry_after_s=1)
        self._taken_bytes = wanted
