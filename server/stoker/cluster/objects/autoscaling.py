"""Who chooses the number of pods: a HorizontalPodAutoscaler, or a ScaledObject of KEDA."""

from __future__ import annotations

from typing import Any, Final

from stoker.cluster.objects.metadata import metadata
from stoker.cluster.objects.quantities import thousandths
from stoker.cluster.plan import ClusterPlan
from stoker.cluster.pod_file import HTTP_PORT, pod_file
from stoker.settings.server import ServerSettings

__all__ = ["autoscaling"]

_METRIC: Final = "stoker_rows_in_flight"
_PERCENT: Final = 100
_BEHAVIOUR: Final[dict[str, Any]] = {
    # Up at once: as many again, or 4 where those are more. Down after a minute, a tenth at a time.
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
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
    """Return what scales the Deployment, if the plan says so.

    Both look at the rows that requests hold in a pod: one that holds as many as it can work on at once is busy to
    100 percent. That is its limit of requests at once, or a full batch.
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
    busiest = min(_wanted_rows(plan, model) for model in pod_file(plan)["models"])
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": _METRIC},
            "target": {"type": "AverageValue", "averageValue": thousandths(busiest)},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(plan, plan.instance),
        "spec": {
            "scaleTargetRef": _target(plan, with_version=True),
            "minReplicas": fewest,
            "maxReplicas": most,
            "metrics": [metric],
            "behavior": _BEHAVIOUR,
        },
    }


def _scaled_object(plan: ClusterPlan) -> dict[str, Any]:
    fewest, most = plan.scaling_range
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(plan, plan.instance),
        "spec": {
            "scaleTargetRef": _target(plan, with_version=False),
            "pollingInterval": plan.autoscale_refresh_s or 1,
            "minReplicaCount": fewest,
            "maxReplicaCount": most,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _BEHAVIOUR}},
            "triggers": [_trigger(plan, model) for model in pod_file(plan)["models"]],
        },
    }


def _trigger(plan: ClusterPlan, model: dict[str, Any]) -> dict[str, Any]:
    """The rows of one model in all pods. KEDA asks each pod of the Service, at the port of the pod."""
    return {
        "type": "metrics-api",
        "metadata": {
            "url": f"http://{plan.servers_service}.{plan.namespace}:{HTTP_PORT}/metrics",
            "format": "prometheus",
            "valueLocation": f'{_METRIC}{{model="{model["name"]}"}}',
            "targetValue": f"{_wanted_rows(plan, model):g}",
            "aggregateFromKubeServiceEndpoints": "true",
            "aggregationType": "sum",
        },
    }


def _target(plan: ClusterPlan, *, with_version: bool) -> dict[str, str]:
    target = {"kind": "Deployment", "name": plan.instance}
    return {"apiVersion": "apps/v1", **target} if with_version else target


def _wanted_rows(plan: ClusterPlan, model: dict[str, Any]) -> float:
    """Rows in flight that a pod is to have of a model."""
    of_all = plan.server.get("max_batch_rows", ServerSettings().max_batch_rows)
    most = model.get("max_concurrent_requests") or model.get("max_batch_rows") or of_all
    return float(most) * (plan.target_utilization or 70) / _PERCENT
