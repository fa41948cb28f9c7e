"""The part of a service that its calls and their dialects use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.arena import NORMAL_TIER
from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    ImageTooLarge,
    MethodNotAllowed,
    ModelTooLarge,
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

if TYPE_CHECKING:
    from stoker.gateway.rows.urgency import Quotas, Urgency
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.dialect import Dialect
    from stoker.gateway.scoring.load_reports import LoadReports
    from stoker.metrics.counters import ModelMetrics
    from stoker.settings.choices import NonFinite
    from stoker.tensors import Signature


class ServiceBase:
    """The part of a service that its calls and their dialects use.

    Attributes:
        signature: The model's tensors; None before it is loaded.
        dialect: The dialect of requests that come without one.
        timeout_ns: A request that is not answered within this time gets 504.
        non_finite: How NaN and infinities are written in the JSON of answers.
        closes: Whether its answers close their connections.
        codecs: What dialects cache for the loaded model, by class.
        urgency: The default urgency of its requests; None if nothing distinguishes them.
        load_reports: Reports its load to balancers; None if that is not set up.
    """

    name: str
    version: str
    metrics: ModelMetrics
    signature: Signature | None
    dialect: Dialect
    timeout_ns: int
    max_body_bytes: int
    non_finite: NonFinite
    closes: bool
    codecs: dict[type, Any]
    urgency: Urgency | None
    load_reports: LoadReports | None
    quotas: Quotas | None
    call_type: type[Call]

    def count_refusal(self, error: StokerError, tier: int = NORMAL_TIER) -> None:
        """Count an error answer to a request of a tier."""
        self.metrics.count_request(error.status)
        if error.refusal is not None:
            self.metrics.count_refusal(error.refusal.reason, tier)
        reason = _rejection_reason(error)
        if reason is not None:
            self.metrics.count_rejection(reason)

    def run_again(self, call: Call, error: StokerError) -> bool:
        """Run a failed request again; False if that would not help or is not allowed."""
        del call, error
        return False

    def not_ready(self) -> NotReady:
        """Return the error for a request while no device process has the model."""
        return NotReady(f"{self.name} is not ready: it is loading or its device restarts.", retry_after_s=1)


def _rejection_reason(error: StokerError) -> str | None:
    """Return the reason for `stoker_rejections_total`; None for errors that are not counted there."""
    match error:
        case Overloaded() | TooManySequences():
            return "overloaded"
        case NotReady() | ModelTooLarge():
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
