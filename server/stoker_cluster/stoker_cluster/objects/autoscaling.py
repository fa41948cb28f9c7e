"""Autoscalers that Kubernetes or KEDA runs: a HorizontalPodAutoscaler, or a ScaledObject."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.objects.configuration import HTTP_PORT, pod_file
from stoker_cluster.objects.metadata import (
    manifest,
    metadata,
    thousandths,
)
from stoker_cluster.plan import ClusterPlan

_METRIC: Final = "stoker_load"
_PERCENT: Final = 100
_BEHAVIOUR: Final[dict[str, Any]] = {
    # Decision 69. Up at once: as many again a second, or 4 where those are more. Down after a minute, a tenth at a
    # time.
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 1},
            {"type": "Pods", "value": 4, "periodSeconds": 1},
        ],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 60,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 10, "periodSeconds": 60},
            {"type": "Pods", "value": 1, "periodSeconds": 60},
        ],
    },
}


def autoscaling(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the objects that scale the Deployment, if the plan has an autoscaler.

    Both look at the load of pods, as Stoker's own autoscaler does.
    """
    match plan.autoscaler:
        case "hpa":
            return [_horizontal(plan)]
        case "keda":
            return [_scaled_object(plan)]
        case _:
            return []


def _horizontal(plan: ClusterPlan) -> dict[str, Any]:
    fewest, most = plan.scaling_range
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": _METRIC},
            "target": {"type": "AverageValue", "averageValue": thousandths(_target_load(plan))},
        },
    }
    spec = {
        "scaleTargetRef": _target(plan, with_version=True),
        "minReplicas": fewest,
        "maxReplicas": most,
        "metrics": [metric],
        "behavior": _BEHAVIOUR,
    }
    return manifest("autoscaling/v2", "HorizontalPodAutoscaler", metadata(plan, plan.instance), spec=spec)


def _scaled_object(plan: ClusterPlan) -> dict[str, Any]:
    fewest, most = plan.scaling_range
    spec = {
        "scaleTargetRef": _target(plan, with_version=False),
        "pollingInterval": plan.autoscale_refresh_s or 1,
        "minReplicaCount": fewest,
        "maxReplicaCount": most,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _BEHAVIOUR}},
        "triggers": [_trigger(plan, model) for model in pod_file(plan)["models"]],
    }
    return manifest("keda.sh/v1alpha1", "ScaledObject", metadata(plan, plan.instance), spec=spec)


def _trigger(plan: ClusterPlan, model: dict[str, Any]) -> dict[str, Any]:
    """Return the trigger for the load of one model in all pods. KEDA asks each pod of the Service at its own port."""
    return {
        "type": "metrics-api",
        "metadata": {
            "url": f"http://{plan.servers_service}.{plan.namespace}:{HTTP_PORT}/metrics",
            "format": "prometheus",
            "valueLocation": f'{_METRIC}{{model="{model["name"]}"}}',
            "targetValue": f"{_target_load(plan):g}",
            "aggregateFromKubeServiceEndpoints": "true",
            "aggregationType": "sum",
        },
    }


def _target(plan: ClusterPlan, *, with_version: bool) -> dict[str, str]:
    target = {"kind": "Deployment", "name": plan.instance}
    return {"apiVersion": "apps/v1", **target} if with_version else target


def _target_load(plan: ClusterPlan) -> float:
    """Return the target load of a pod."""
    return (plan.target_utilization or 70) / _PERCENT
