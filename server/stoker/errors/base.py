"""What all errors are."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["StokerError"]


class StokerError(Exception):
    """Base of every error that Stoker raises on purpose; `str(error)` is safe to show to the caller."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    run_failed: ClassVar[bool] = False
    """Whether the model or script is to blame: what the header `x-ms-run-function-failed` says."""
    error_id: str | None = None
    """What the log has more under, or None."""

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Whole seconds after which a retry makes sense, or None."""
