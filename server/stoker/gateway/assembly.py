"""Making a frontend's service of what the supervisor says about a version of a model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stoker.errors import LoadFailed
from stoker.gateway.rows.urgency import USUAL, Urgency
from stoker.gateway.scoring.admission import LimitedService
from stoker.gateway.scoring.facts import Limits, ServiceFacts
from stoker.gateway.scoring.image_scoring import ImageScoring
from stoker.gateway.scoring.long_bodies import shared_long_bodies
from stoker.gateway.scoring.service import Service
from stoker.keys.access import Access
from stoker.keys.verifier import KeyVerifier
from stoker.metrics.counters import ModelMetrics
from stoker.metrics.memory import MetricPage
from stoker.models.swagger_files import read_swagger_file
from stoker.settings.endpoint import keys_owner
from stoker.settings.lateness import TIERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stoker.control.frontend_rules import ServerRules, ServiceRules
    from stoker.gateway.scoring.collector import Collector
    from stoker.terms import Terms

__all__ = ["assemble"]

logger = logging.getLogger(__name__)


def assemble(rules: ServiceRules, page: MetricPage, server: ServerRules) -> Service:
    """Make a service.

    Args:
        rules: What the supervisor says of it.
        page: The frontend's page of the metrics.
        server: What holds for all services.
    """
    terms = rules.terms
    metrics = page.model(rules.slot)
    metrics.clear_gauges()
    facts = ServiceFacts(
        rules.name,
        str(rules.version),
        rules.framework,
        terms.description,
        _own_swagger(terms.swagger_files),
        rules.hosting,
    )
    limits = Limits(
        terms.timeout_ms,
        server.max_body_bytes,
        terms.max_concurrent_requests,
        terms.max_queue_wait_ms,
        _urgency(terms),
    )
    kind = Service if limits.max_concurrent_requests is None else LimitedService
    return kind(
        facts,
        _access(rules, server),
        metrics,
        limits,
        images=_images(terms, server),
        collector=_collector(rules, server, metrics),
        non_finite=terms.non_finite,
        long_bodies=shared_long_bodies(),
    )


def _urgency(terms: Terms) -> Urgency | None:
    """How urgent requests are that say nothing; None where that is what all are."""
    lasts_ns = 0 if terms.target_ms is None else round(terms.target_ms * 1e6)
    urgency = Urgency(TIERS.index(terms.default_tier), lasts_ns=lasts_ns)
    return None if urgency == USUAL else urgency


def _access(rules: ServiceRules, server: ServerRules) -> Access:
    owner = keys_owner(server.endpoint, rules.name)
    if not server.auth and not server.token_auth:
        return Access()
    keys = KeyVerifier(server.keys_dir, owner, rules.keys, model=rules.name)
    if not server.token_auth:
        return Access(keys)
    from stoker.keys.tokens import TokenVerifier

    # Tokens are handed out for keys, which need not be taken.
    return Access(keys if server.auth else None, TokenVerifier(server.keys_dir, owner, keys))


def _own_swagger(files: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """What the user's files say; what has become unreadable since the start is left to be made."""
    descriptions = {}
    for version, file in files.items():
        try:
            descriptions[version] = read_swagger_file(file)
        except LoadFailed as error:
            logger.warning("%s", error)
    return descriptions


def _images(terms: Terms, server: ServerRules) -> ImageScoring | None:
    if terms.image is None:
        return None
    return ImageScoring(terms.image, max_pixels=server.max_image_pixels, max_rows_bytes=server.max_body_bytes)


def _collector(rules: ServiceRules, server: ServerRules, metrics: ModelMetrics) -> Collector | None:
    settings, data_dir = rules.terms.collection, rules.terms.data_dir
    if settings is None:
        return None
    from stoker.collecting.record_files import RecordFiles
    from stoker.gateway.scoring.collector import Collector

    assert data_dir is not None, "collected is only what has a folder"
    files = RecordFiles(
        data_dir,
        rules.version,
        settings.format,
        max_bytes=settings.max_mb << 20,
        writers=server.frontends,
    )
    collector = Collector(rules.name, rules.version, settings, files, metrics)
    collector.start()
    return collector
