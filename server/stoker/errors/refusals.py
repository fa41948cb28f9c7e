"""Why a request was refused, and when it may come back."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Refusal"]

_MS_NS: Final = 1_000_000


class Refusal(NamedTuple):
    """What is known where a request is refused: for its caller, and for what is counted.

    Attributes:
        status: Of HTTP.
        code: Of the error.
        retry_after_ms: In how long another try makes sense, at least 1.
        expected_ns: How long its answer was expected to take; 0 if nothing was.
        rows_ahead: How many rows would have been served before it.
        reason: In a word: `target`, `deadline` or `rows`, or which limit of its caller's.
        target_ns: How long its answer might take; 0 if nobody said.
    """

    status: int
    code: str
    retry_after_ms: int
    expected_ns: int = 0
    rows_ahead: int = 0
    reason: str = "rows"
    target_ns: int = 0

    @property
    def retry_after_s(self) -> int:
        """The same in whole seconds, rounded up."""
        return max(1, -(-self.retry_after_ms // 1000))

    @property
    def explained(self) -> str:
        """What the header `Stoker-Refused` says: the reason, and what is known of the rest."""
        said = [f"reason={self.reason}"]
        if self.expected_ns:
            said.append(f"expected-ms={-(-self.expected_ns // _MS_NS)}")
        if self.target_ns:
            said.append(f"target-ms={self.target_ns // _MS_NS}")
        if self.rows_ahead:
            said.append(f"rows-ahead={self.rows_ahead}")
        return ", ".join(said)
