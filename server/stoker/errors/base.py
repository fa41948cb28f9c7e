"""What all errors are."""

from __future__ import annotations

from typing import ClassVar, Self

from stoker.errors.refusals import Refusal

__all__ = ["StokerError"]


class StokerError(Exception):
    """Base of every error that Stoker raises on purpose; `str(error)` is safe to show to the caller."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    run_failed: ClassVar[bool] = False
    """Whether the model or script is to blame: what the header `x-ms-run-function-failed` says."""
    error_id: str | None = None
    """What the log has more under, or None."""

    def __init__(
        self, message: str, *, retry_after_s: int | None = None, refusal: Refusal | None = None
    ) -> None:
        super().__init__(message)
        self.refusal = refusal
        """What is known of a request that might be taken at another time, or None."""
        self.retry_after_s = retry_after_s if refusal is None else refusal.retry_after_s
        """Whole seconds after which a retry makes sense, or None."""

    def within(self, place: str) -> Self:
        """The same error, whose message says first where it has happened."""
        told = type(self).__new__(type(self))
        told.__dict__.update(self.__dict__)
        told.args = (f"{place}: {self}",)
        return told

    @property
    def retry_after_ms(self) -> int | None:
        """The same in milliseconds, as precisely as it is known."""
        if self.refusal is not None:
            return self.refusal.retry_after_ms
        return None if self.retry_after_s is None else self.retry_after_s * 1000
