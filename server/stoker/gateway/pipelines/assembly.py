"""Builds a frontend's service from what the supervisor says about a pipeline."""

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
        rules: The supervisor's message about the pipeline.
        models: The served models by name; the mapping is kept up to date.
        page: The frontend's page of the metrics.
        server: The settings that hold for all services.
        journal: Records remarkable requests; None to record none.
        quotas: The quotas of callers with limits.
    """
    pipeline = rules.pipeline
    return PipelineService(
        pipeline,
        models,
        ServiceFacts(pipeline.name, NUMBER, "pipeline", pipeline.description),
        access_of(pipeline.name, rules.keys, server, page.key_changes),
        metrics_of(page, rules.slot, journal, pipeline.name, NUMBER),
        Limits(rules.timeout_ms, server.max_body_bytes, quotas=quotas),
        non_finite=rules.non_finite,
        long_bodies=shared_long_bodies(),
    )
