"""The namespace, and the ConfigMaps with the deployment file of the pods and the address of their models."""

from __future__ import annotations

from typing import Any

from stoker_cluster.objects.metadata import metadata
from stoker_cluster.objects.models import ADDRESS_FILE
from stoker_cluster.plan import ClusterPlan

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
    """Return the ConfigMap with the deployment file, which is given as text, and that with the models' address."""
    maps = [_map(plan, f"{plan.instance}-config", {"deployment.yaml": deployment_file})]
    if plan.followed_models is not None:
        # Not in the template of the pods: another address is no other pod.
        maps.append(_map(plan, plan.followed_models, {ADDRESS_FILE: f"{plan.models}\n"}))
    return maps


def _map(plan: ClusterPlan, name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(plan, name), "data": data}
