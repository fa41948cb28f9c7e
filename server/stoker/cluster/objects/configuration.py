"""The namespace, and the ConfigMap with the deployment file of the pods."""

from __future__ import annotations

from typing import Any

from stoker.cluster.objects.metadata import metadata
from stoker.cluster.plan import ClusterPlan

__all__ = ["configuration", "namespace"]


def namespace(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the namespace, if it is to be made; it takes no pod that the profile restricted does not allow."""
    if not plan.create_namespace:
        return []
    labels = {
        "app.kubernetes.io/managed-by": "stoker",
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": plan.namespace, "labels": labels}}]


def configuration(plan: ClusterPlan, deployment_file: str) -> list[dict[str, Any]]:
    """Return the ConfigMap with the deployment file, which is given as text."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(plan, f"{plan.instance}-config"),
            "data": {"deployment.yaml": deployment_file},
        }
    ]
