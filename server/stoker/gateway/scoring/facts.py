"""What is known of a service before its model is loaded: what is said of it, its limits, and what few have."""

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
    from stoker.non_finite import NonFinite

__all__ = ["Limits", "ServiceFacts", "ServiceOptions"]


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What is said of a service.

    Attributes:
        name: Name of the model.
        version: Its version.
        framework: `onnx`, `tensorflow` or `script`; empty if that is not known.
        description: The operator's words for its Swagger; None has words made for it.
        swagger: Descriptions that the user has written, by Swagger version; they win over those that are made.
        hosting: Where it runs, and in what batches.
    """

    name: str
    version: str = "1"
    framework: str = ""
    description: str | None = None
    swagger: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    hosting: Hosting = field(default_factory=Hosting)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the requests to a service may take.

    Attributes:
        timeout_ms: A request that is not answered by then gets 504.
        max_body_bytes: The longest body of a request.
        max_concurrent_requests: Most requests in flight in this frontend; None is without limit.
        max_queue_wait_ms: How long requests beyond that wait.
        urgency: How urgent those are that do not say so; None if nothing tells them apart.
        by_target: Whether only those are taken that are expected to be in time.
        quotas: What callers with limits may still send; None if nobody has a limit.
    """

    timeout_ms: int
    max_body_bytes: int
    max_concurrent_requests: int | None = None
    max_queue_wait_ms: int = 0
    urgency: Urgency | None = None
    by_target: bool = False
    quotas: Quotas | None = None


class ServiceOptions(TypedDict, total=False):
    """What most services have not.

    Attributes:
        images: Reads images.
        collector: Keeps what is collected of the requests.
        non_finite: What becomes of NaN and infinities in the JSON of answers; by default words.
        long_bodies: Reads bodies above 1 MiB beside the loop; where it is not given, they are read on it.
        turns: Says in which order bodies are decoded; by default short ones first.
    """

    images: ImageScoring | None
    collector: Collector | None
    non_finite: NonFinite
    long_bodies: LongBodies | None
    turns: FairTurns
