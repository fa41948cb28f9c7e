"""The reasons under which refused requests are counted."""

from __future__ import annotations

from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    ImageTooLarge,
    MethodNotAllowed,
    NotReady,
    OutOfScope,
    Overloaded,
    QuotaExceeded,
    RequestError,
    RequestOverQuota,
    StokerError,
    TooManySequences,
    Unauthorized,
)
from stoker.metrics.counters import ModelMetrics

__all__ = ["count_refused"]


def count_refused(metrics: ModelMetrics, error: StokerError, tier: int) -> None:
    """Count an error answer to a request of a tier."""
    metrics.count_request(error.status)
    if error.refusal is not None:
        metrics.count_refusal(error.refusal.reason, tier)
    reason = _rejection(error)
    if reason is not None:
        metrics.count_rejection(reason)


def _rejection(error: StokerError) -> str | None:
    """Return the reason for `stoker_rejections_total`; None for errors that are not counted there."""
    match error:
        case Overloaded() | TooManySequences():
            return "overloaded"
        case NotReady():
            return "not_ready"
        case DeadlineExceeded():
            return "deadline"
        case Unauthorized() | OutOfScope():
            return "unauthorized"
        case BodyTooLarge() | ImageTooLarge():
            return "body_too_large"
        case QuotaExceeded() | RequestOverQuota():
            return "quota"
        case MethodNotAllowed():
            return None
        case RequestError():
            return "malformed"
        case _:
            return None
