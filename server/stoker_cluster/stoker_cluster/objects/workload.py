"""The Deployment: one server a pod, as many pods as the plan says."""

from __future__ import annotations

import math
from typing import Any, Final

from stoker_cluster.objects.metadata import ANNOTATIONS, metadata, selector
from stoker_cluster.objects.pod import pod_spec
from stoker_cluster.plan import ClusterPlan

__all__ = ["workload"]

_READY_FOR_S: Final = 2
_BEYOND_LOADING_S: Final = 120
_OLD_REVISIONS: Final = 3
_MANY_REPLICAS: Final = 20


def workload(plan: ClusterPlan, fingerprint: str) -> list[dict[str, Any]]:
    """Return the Deployment, and what its pods claim GPUs by.

    Args:
        plan: The plan.
        fingerprint: What changes when the deployment file of the pods does: new pods read a new one.
    """
    spec: dict[str, Any] = {}
    if plan.fixed_replicas is not None:
        # Where something else chooses the number, each `apply` would set it back.
        spec["replicas"] = plan.fixed_replicas
    labels = metadata(plan, plan.instance)["labels"]
    spec |= {
        "selector": {"matchLabels": selector(plan)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling_update(plan)},
        "minReadySeconds": _READY_FOR_S,
        "progressDeadlineSeconds": math.ceil(plan.load_timeout_s) + _BEYOND_LOADING_S,
        "revisionHistoryLimit": _OLD_REVISIONS,
        "template": {
            "metadata": {"labels": labels, "annotations": {f"{ANNOTATIONS}/config": fingerprint}},
            "spec": pod_spec(plan),
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(plan, plan.instance, described=True),
        "spec": spec,
    }
    return [*_claim_templates(plan), deployment]


def _rolling_update(plan: ClusterPlan) -> dict[str, Any]:
    """Pods that come and go at once: without a GPU to spare, a new one would wait beside the old ones for ever."""
    unavailable = plan.max_unavailable
    if unavailable is None:
        unavailable = 0 if plan.surge else 1 if plan.most_replicas < _MANY_REPLICAS else "10%"
    return {"maxSurge": plan.surge, "maxUnavailable": unavailable}


def _claim_templates(plan: ClusterPlan) -> list[dict[str, Any]]:
    if plan.dra is None:
        return []
    exactly = {"deviceClassName": plan.dra, "allocationMode": "ExactCount", "count": plan.gpu_count}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata(plan, plan.instance),
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }
    ]
