"""A service's name, version and description, and the limits of requests to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from stoker.settings.choices import WORDS, NonFinite

if TYPE_CHECKING:
    from stoker.deployment import Deployment
    from stoker.gateway.rows.urgency import Quotas, Urgency


class ServiceFacts(Struct, frozen=True):
    """Descriptive facts of a service.

    Attributes:
        framework: `onnx`, `tensorflow` or `script`; empty if not known.
        description: The operator's description for its Swagger; None to generate one.
        swagger: The user's own descriptions by Swagger version, used in place of generated ones.
        non_finite: How NaN and infinities are written in the JSON of answers.
    """

    name: str
    version: str = "1"
    framework: str = ""
    description: str | None = None
    swagger: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    deployment: Deployment | None = None
    non_finite: NonFinite = WORDS


class Limits(Struct, frozen=True):
    """The limits of requests to a service.

    Attributes:
        timeout_ns: A request that is not answered within this time gets 504.
        max_concurrent_requests: Most requests in flight in this frontend; None is without limit.
        max_queue_wait_ms: How long requests beyond that wait.
        urgency: The default urgency of requests; None if nothing distinguishes them.
        by_target: Whether requests are refused that are expected to miss their target.
    """

    timeout_ns: int
    max_body_bytes: int
    max_concurrent_requests: int | None = None
    max_queue_wait_ms: int = 0
    urgency: Urgency | None = None
    by_target: bool = False
    quotas: Quotas | None = None
