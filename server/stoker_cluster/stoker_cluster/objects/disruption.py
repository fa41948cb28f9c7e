"""The PodDisruptionBudget: what a drained node may take away at once."""

from __future__ import annotations

from typing import Any

from stoker_cluster.objects.metadata import metadata, selector
from stoker_cluster.plan import ClusterPlan

__all__ = ["disruption"]


def disruption(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the budget: one pod at a time, and a pod that is not ready whenever it is in the way."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(plan)},
    }
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(plan, plan.instance),
            "spec": spec,
        }
    ]
