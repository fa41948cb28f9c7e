"""Under which reason requests that are refused are counted."""

from __future__ import annotations

from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    ImageTooLarge,
    MethodNotAllowed,
    NotReady,
    OutOfScope,
    Overloaded,
    RequestError,
    StokerError,
    Unauthorized,
)

__all__ = ["rejection"]


def rejection(error: StokerError) -> str | None:
    """Return the reason of `stoker_rejections_total`; None for what is not counted there."""
    match error:
        case Overloaded():
            return "overloaded"
        case NotReady():
            return "not_ready"
        case DeadlineExceeded():
            return "deadline"
        case Unauthorized() | OutOfScope():
            return "unauthorized"
        case BodyTooLarge() | ImageTooLarge():
            return "body_too_large"
        case MethodNotAllowed():
            return None
        case RequestError():
            return "malformed"
        case _:
            return None
