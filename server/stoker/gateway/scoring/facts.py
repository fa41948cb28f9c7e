"""What is known of a service before its model is loaded: description, limits, and optional parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from stoker.gateway.rows.quotas import Quotas
from stoker.gateway.rows.urgency import Urgency
from stoker.hosting import Hosting

if TYPE_CHECKING:
    from stoker.gateway.scoring.collector import Collector
    from stoker.gateway.scoring.fair_turns import FairTurns
    from stoker.gateway.scoring.image_scoring import ImageScoring
    from stoker.gateway.scoring.long_bodies import LongBodies
    from stoker.settings.choices import NonFinite

__all__ = ["Limits", "ServiceFacts", "ServiceOptions"]


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Descriptive facts of a service.

    Attributes:
        name: Name of the model.
        version: Its version.
        framework: `onnx`, `tensorflow` or `script`; empty if not known.
        description: The operator's description for its Swagger; None to generate one.
        swagger: The user's own descriptions by Swagger version, used in place of generated ones.
        hosting: Where it runs, and how requests are batched.
    """

    name: str
    version: str = "1"
    framework: str = ""
    description: str | None = None
    swagger: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    hosting: Hosting = field(default_factory=Hosting)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of requests to a service.

    Attributes:
        timeout_ms: A request that is not answered within this time gets 504.
        max_body_bytes: The longest accepted body.
        max_concurrent_requests: Most requests in flight in this frontend; None is without limit.
        max_queue_wait_ms: How long requests beyond that wait.
        urgency: The default urgency of requests; None if nothing distinguishes them.
        by_target: Whether requests are refused that are expected to miss their target.
        quotas: The quotas of callers with limits; None if nobody has a limit.
    """

    timeout_ms: int
    max_body_bytes: int
    max_concurrent_requests: int | None = None
    max_queue_wait_ms: int = 0
    urgency: Urgency | None = None
    by_target: bool = False
    quotas: Quotas | None = None


class ServiceOptions(TypedDict, total=False):
    """Parts that most services do not have.

    Attributes:
        images: Decodes images.
        collector: Collects requests and answers.
        non_finite: How NaN and infinities are written in the JSON of answers; by default as words.
        long_bodies: Decodes bodies above 1 MiB beside the event loop; if absent, they are decoded on it.
        turns: Decides in which order bodies are decoded; by default short ones first.
    """

    images: ImageScoring | None
    collector: Collector | None
    non_finite: NonFinite
    long_bodies: LongBodies | None
    turns: FairTurns
