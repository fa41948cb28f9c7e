"""The PodMonitor, by which Prometheus' operator finds the metrics of every pod."""

from __future__ import annotations

from typing import Any

from stoker_cluster.objects.metadata import metadata, selector
from stoker_cluster.plan import ClusterPlan

__all__ = ["monitoring"]


def monitoring(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the PodMonitor, if the plan has one."""
    if not plan.pod_monitor:
        return []
    endpoint: dict[str, Any] = {"port": "http", "path": "/metrics", "interval": "15s"}
    if plan.server.get("metrics_auth"):
        endpoint["authorization"] = {"credentials": {"name": plan.keys_secret, "key": "primary"}}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": metadata(plan, plan.instance),
            "spec": {"selector": {"matchLabels": selector(plan)}, "podMetricsEndpoints": [endpoint]},
        }
    ]
