"""Making a frontend's service of what the supervisor says about a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.assembly import access_of, metrics_of
from stoker.gateway.pipelines.service import NUMBER, PipelineService
from stoker.gateway.scoring.facts import Limits, ServiceFacts
from stoker.gateway.scoring.long_bodies import shared_long_bodies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stoker.control.frontend_rules import PipelineRules, ServerRules
    from stoker.gateway.rows.quotas import Quotas
    from stoker.gateway.served_models import ServedModel
    from stoker.metrics.journal import Journal
    from stoker.metrics.memory import MetricPage

__all__ = ["assemble_pipeline"]


def assemble_pipeline(
    rules: PipelineRules,
    models: Mapping[str, ServedModel],
    page: MetricPage,
    server: ServerRules,
    *,
    journal: Journal | None = None,
    quotas: Quotas | None = None,
) -> PipelineService:
    """Make a service.

    Args:
        rules: What the supervisor says of it.
        models: What is served, by name, as it is at any time.
        page: The frontend's page of the metrics.
        server: What holds for all services.
        journal: Where remarkable requests go; None if none are remarked.
        quotas: What callers with limits may still send.
    """
    pipeline = rules.pipeline
    return PipelineService(
        pipeline,
        models,
        ServiceFacts(pipeline.name, NUMBER, "pipeline", pipeline.description),
        access_of(pipeline.name, rules.keys, server),
        metrics_of(page, rules.slot, journal, pipeline.name, NUMBER),
        Limits(rules.timeout_ms, server.max_body_bytes, quotas=quotas),
        non_finite=rules.non_finite,
        long_bodies=shared_long_bodies(),
    )
