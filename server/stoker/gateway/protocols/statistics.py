"""The statistics extension of the Open Inference Protocol, from the counters that all processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stoker.echo import cut
from stoker.errors import UnknownService

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.metrics.totals import ModelTotals

__all__ = ["statistics"]

_NOTHING: Final = {"count": 0, "ns": 0}


def statistics(gateway: Gateway, name: str | None = None, version: str | None = None) -> list[dict[str, Any]]:
    """Return the statistics of the versions that are served, those of unloaded ones only if they are asked for.

    Args:
        gateway: What is served.
        name: A model; None for all.
        version: One version of it; None for all that are served.

    Raises:
        UnknownService: There is no such model or version.
    """
    if name is not None and name not in gateway.models:
        raise UnknownService(f"Request for unknown model: '{cut(name)}' is not found")
    gateway.flush_metrics()
    totals = gateway.metrics.totals()
    found = [
        _model_statistics(model_name, number, totals.model(served.standing.slot))
        for model_name, model in gateway.models.items()
        if name in (None, model_name)
        for number, served in model.versions.items()
        if (served.service is not None if version is None else number == version)
    ]
    if version is not None and not found:
        raise UnknownService(f"Request for unknown model: '{name}' version {cut(version)} is not found")
    return found


def _model_statistics(name: str, version: str, totals: ModelTotals) -> dict[str, Any]:
    requests = totals.requests()
    succeeded = requests.pop(200)
    stages = totals.stage_ns()
    queued_rows, queue_ns = stages["queue"]
    return {
        "name": name,
        "version": version,
        "last_inference": totals.last_scored_ms,
        "inference_count": totals.rows,
        "execution_count": sum(totals.dispatches().values()),
        "inference_stats": {
            "success": {"count": succeeded, "ns": stages["total"][1]},
            # How long those took is not measured.
            "fail": {"count": sum(requests.values()), "ns": 0},
            "queue": {"count": queued_rows, "ns": queue_ns},
            "compute_input": {"count": stages["parse"][0], "ns": stages["parse"][1]},
            "compute_infer": {"count": totals.batch_rows().sum, "ns": totals.row_compute_ns},
            "compute_output": dict(_NOTHING),
            "cache_hit": dict(_NOTHING),
            "cache_miss": dict(_NOTHING),
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }
