"""The statistics extension of the Open Inference Protocol, from the counters that all processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.echo import cut
from stoker.errors import UnknownService

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.metrics.totals import ModelTotals

__all__ = ["statistics"]


def statistics(gateway: Gateway, name: str | None = None, version: str | None = None) -> list[dict[str, Any]]:
    """Return the statistics of the versions that are served; of unloaded ones only if they are named.

    Args:
        gateway: The frontend's gateway.
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
    cache = totals.cache()
    batches = sum((*totals.dispatches().values(), *totals.target_dispatches().values()))
    return {
        "name": name,
        "version": version,
        "last_inference": totals.last_scored_ms,
        "inference_count": totals.rows,
        "execution_count": batches,
        "inference_stats": {
            "success": {"count": succeeded, "ns": stages["total"][1]},
            # The duration of refused requests is not measured.
            "fail": {"count": sum(requests.values()), "ns": 0},
            "queue": _of_requests(succeeded, *stages["queue"]),
            "compute_input": _of_requests(succeeded, *stages["parse"]),
            "compute_infer": _of_requests(succeeded, totals.batch_rows().sum, totals.row_compute_ns),
            # Answers are written within the time of `success`, and this part is not measured separately.
            "compute_output": _of_requests(succeeded, 0, 0),
            "cache_hit": {"count": cache.hits, "ns": cache.hit_ns},
            "cache_miss": {"count": cache.misses, "ns": cache.miss_ns},
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def _of_requests(requests: int, count: float, ns: int) -> dict[str, int]:
    """Counts per request from a mean that may be per row: Triton's tools expect one count for all times."""
    return {"count": requests, "ns": round(ns * requests / count) if count else 0}
