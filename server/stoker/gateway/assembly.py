"""Builds a frontend's services from the supervisor's messages about versions of models and about pipelines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stoker.errors import LoadFailed
from stoker.gateway.pipelines.service import NUMBER, PipelineService
from stoker.gateway.rows.cache import AnswerCache
from stoker.gateway.rows.urgency import DEFAULT_URGENCY, Urgency
from stoker.gateway.scoring.images import ImageScoring
from stoker.gateway.scoring.limited_service import LimitedService
from stoker.gateway.scoring.long_bodies import shared_long_bodies
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.service_facts import Limits, ServiceFacts
from stoker.gateway.scoring.staging import DecodeQueue, OrderedDecodeQueue
from stoker.keys.access import Access
from stoker.keys.verifier import KeyVerifier
from stoker.metrics.counters import ModelMetrics
from stoker.metrics.journal import Remarks
from stoker.metrics.memory import MetricPage
from stoker.models.swagger_files import read_swagger_file
from stoker.settings.choices import TIERS
from stoker.settings.traffic import keys_owner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stoker.control.frontend_messages import PipelineRules, ServerRules
    from stoker.deployment import Deployment
    from stoker.gateway.rows.urgency import Quotas
    from stoker.gateway.scoring.collector import Collector
    from stoker.gateway.served_models import ServedModel
    from stoker.keys.generation import Generation
    from stoker.metrics.journal import Journal

logger = logging.getLogger(__name__)


def assemble(
    deployment: Deployment,
    page: MetricPage,
    server: ServerRules,
    *,
    journal: Journal | None = None,
    quotas: Quotas | None = None,
) -> Service:
    """Make the service of a version, with this frontend's share of its limits."""
    version = str(deployment.version)
    metrics = metrics_of(page, deployment.slot, journal, deployment.name, version)
    facts = ServiceFacts(
        deployment.name,
        version,
        deployment.framework,
        deployment.description,
        _own_swagger(deployment.swagger_files),
        deployment,
        deployment.non_finite,
    )
    limits = _limits(deployment, server, quotas)
    kind = Service if limits.max_concurrent_requests is None else LimitedService
    service = kind(
        facts,
        access_of(deployment.name, server, page.key_changes),
        metrics,
        limits,
        images=_images(deployment, server),
        collector=_collector(deployment, server, metrics),
        long_bodies=shared_long_bodies(),
        turns=DecodeQueue() if deployment.sequence is None else OrderedDecodeQueue(),
    )
    service.replicas.cache = _cache(deployment, metrics)
    return service


def _limits(deployment: Deployment, server: ServerRules, quotas: Quotas | None) -> Limits:
    return Limits(
        deployment.timeout_ms * 1_000_000,
        server.max_body_bytes,
        deployment.max_concurrent_requests,
        deployment.max_queue_wait_ms,
        _urgency(deployment, quotas),
        by_target=deployment.admission == "target",
        quotas=quotas,
    )


def _cache(deployment: Deployment, metrics: ModelMetrics) -> AnswerCache | None:
    return AnswerCache(deployment.cache_bytes, metrics.note_cache_size) if deployment.cache_bytes else None


def _urgency(deployment: Deployment, quotas: Quotas | None) -> Urgency | None:
    """The default urgency of requests; None where it is the same for all and needs no telling."""
    shared = None if deployment.limit is None or quotas is None else quotas.of_models(deployment.limit)
    lasts_ns = 0 if deployment.target_ms is None else round(deployment.target_ms * 1e6)
    urgency = Urgency(TIERS.index(deployment.default_tier), lasts_ns=lasts_ns, shared=shared)
    return None if urgency == DEFAULT_URGENCY else urgency


def metrics_of(page: MetricPage, slot: int, journal: Journal | None, name: str, version: str) -> ModelMetrics:
    """Return the counters of a new service; the gauges that the slot's former version has left are cleared."""
    metrics = page.model(slot)
    metrics.clear_gauges()
    if journal is not None:
        metrics.remarks = Remarks(journal, name, version)
    return metrics


def access_of(name: str, server: ServerRules, key_changes: Generation | None = None) -> Access:
    """Return the access rules of a service."""
    owner = keys_owner(server.endpoint, name)
    if not server.auth and not server.token_auth:
        return Access()
    keys = KeyVerifier(server.keys_dir, owner, server.keys, model=name, generation=key_changes)
    if not server.token_auth:
        return Access(keys)
    from stoker.keys.tokens import TokenVerifier

    # Tokens are issued for keys, also where a service takes no keys itself.
    tokens = TokenVerifier(server.keys_dir, owner, keys, generation=key_changes)
    return Access(keys if server.auth else None, tokens)


def _own_swagger(files: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """The Swagger files of the user, without those that have become unreadable: theirs are generated then."""
    descriptions = {}
    for version, file in files.items():
        try:
            descriptions[version] = read_swagger_file(file)
        except LoadFailed as error:
            logger.warning("%s", error)
    return descriptions


def _images(deployment: Deployment, server: ServerRules) -> ImageScoring | None:
    if deployment.image is None:
        return None
    return ImageScoring(
        deployment.image, max_pixels=server.max_image_pixels, max_rows_bytes=server.max_body_bytes
    )


def _collector(deployment: Deployment, server: ServerRules, metrics: ModelMetrics) -> Collector | None:
    settings, data_dir = deployment.collection, deployment.data_dir
    if settings is None:
        return None
    from stoker.collecting.record_files import RecordFiles
    from stoker.gateway.scoring.collector import Collector

    assert data_dir is not None, "collected is only what has a folder"
    files = RecordFiles(
        data_dir,
        deployment.version,
        settings.format,
        max_bytes=settings.max_mb << 20,
        writers=server.frontends,
    )
    collector = Collector(deployment.name, deployment.version, settings, files, metrics)
    collector.start()
    return collector


def assemble_pipeline(
    rules: PipelineRules,
    models: Mapping[str, ServedModel],
    page: MetricPage,
    server: ServerRules,
    *,
    journal: Journal | None = None,
    quotas: Quotas | None = None,
) -> PipelineService:
    """Make the service of a pipeline of these models; the mapping is kept up to date."""
    pipeline = rules.pipeline
    return PipelineService(
        pipeline,
        models,
        ServiceFacts(pipeline.name, NUMBER, "pipeline", pipeline.description, non_finite=rules.non_finite),
        access_of(pipeline.name, server, page.key_changes),
        metrics_of(page, rules.slot, journal, pipeline.name, NUMBER),
        Limits(rules.timeout_ms * 1_000_000, server.max_body_bytes, quotas=quotas),
        long_bodies=shared_long_bodies(),
    )
