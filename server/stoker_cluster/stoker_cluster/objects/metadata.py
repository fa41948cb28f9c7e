"""Parts of all objects: names, labels and annotations, the security profile of pods, and quantities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import is_label, is_label_value

ROUTER_METRICS_PORT: Final = 8404
"""The port of the metrics in a router's pods."""
ANNOTATIONS: Final = "stoker.dev"
"""The prefix of labels and annotations."""


VERSION_LABEL: Final = f"{ANNOTATIONS}/version"
"""The label with the version of the endpoint."""


def manifest(api_version: str, kind: str, metadata: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an object of Kubernetes."""
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def selector(plan: ClusterPlan) -> dict[str, str]:
    """Labels that the pods of this Deployment have and no others; they can never be changed."""
    return {"app.kubernetes.io/name": "stoker", "app.kubernetes.io/instance": plan.instance}


def metadata(plan: ClusterPlan, name: str, *, described: bool = False) -> dict[str, Any]:
    """Return the metadata of an object of the service.

    Args:
        described: Whether it has the service's tags, properties and description.
    """
    labels = {
        **selector(plan),
        "app.kubernetes.io/component": "server",
        "app.kubernetes.io/managed-by": "stoker",
    }
    if plan.version_name is not None:
        labels["app.kubernetes.io/part-of"] = plan.name
        labels[VERSION_LABEL] = plan.version_name
    result: dict[str, Any] = {"name": name}
    if plan.namespace is not None:
        result["namespace"] = plan.namespace
    if described:
        # Not on the pods: another place among the versions is no other pod.
        labels |= {f"{ANNOTATIONS}/version-type": plan.version_type} if plan.version_type else {}
        labels |= {
            f"tags.{ANNOTATIONS}/{tag}": value
            for tag, value in plan.tags.items()
            if is_label(tag) and is_label_value(value)
        }
    result["labels"] = labels
    annotations = _annotations(plan) if described else {}
    if annotations:
        result["annotations"] = annotations
    return result


def own_metadata(plan: ClusterPlan, name: str) -> dict[str, Any]:
    """Return the metadata of an object of the autoscaler, whose pods must not get the requests of the service's."""
    base = metadata(plan, name)
    return {
        **base,
        "labels": {
            **base["labels"],
            "app.kubernetes.io/name": "stoker-autoscaler",
            "app.kubernetes.io/component": "autoscaler",
        },
    }


def shared_metadata(plan: ClusterPlan, name: str) -> dict[str, Any]:
    """Return the metadata of an object that all versions of an endpoint have together."""
    labels = {
        "app.kubernetes.io/name": "stoker",
        "app.kubernetes.io/part-of": plan.name,
        "app.kubernetes.io/managed-by": "stoker",
    }
    place = {} if plan.namespace is None else {"namespace": plan.namespace}
    return {"name": name, **place, "labels": labels}


def account_objects(metadata: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a ServiceAccount, and the Role and RoleBinding that give it these rules."""
    group, name = "rbac.authorization.k8s.io", metadata["name"]
    subject = {"kind": "ServiceAccount", "name": name}
    # Without a namespace, the binding's own counts.
    if "namespace" in metadata:
        subject["namespace"] = metadata["namespace"]
    role = {"apiGroup": group, "kind": "Role", "name": name}
    return [
        manifest("v1", "ServiceAccount", metadata, automountServiceAccountToken=False),
        manifest(f"{group}/v1", "Role", metadata, rules=rules),
        manifest(f"{group}/v1", "RoleBinding", metadata, roleRef=role, subjects=[subject]),
    ]


def disruption_budget(metadata: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a PodDisruptionBudget: one pod at a time may be evicted, and pods that are not ready at any time."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": labels},
    }
    return manifest("policy/v1", "PodDisruptionBudget", metadata, spec=spec)


def _annotations(plan: ClusterPlan) -> dict[str, str]:
    texts = {
        "description": plan.description,
        "compute-target": plan.compute_target,
        "tags": _as_json(plan.tags),
        "properties": _as_json(plan.properties),
    }
    if plan.autoscaler is not None:
        fewest, most = plan.scaling_range
        texts |= {
            "autoscale-min-replicas": str(fewest),
            "autoscale-max-replicas": str(most),
            "autoscale-target-utilization": str(plan.target_utilization or 70),
            "autoscale-refresh-seconds": str(plan.autoscale_refresh_s or 1),
        }
    return {f"{ANNOTATIONS}/{name}": value for name, value in texts.items() if value}


def _as_json(texts: Any) -> str | None:
    return json.dumps(dict(texts), ensure_ascii=False, sort_keys=True) if texts else None


# The user of the image; see Dockerfile.gpu.
_USER: Final = 10001

POD_SECURITY: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Requirements of the restricted Pod Security profile on a pod, with the user of the image."""

CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""Requirements of the profile on a container, with a read-only root file system."""


def gigabytes(number: float) -> str:
    """GB of 10⁹ bytes, as Azure counts: 4 is `4G`, 0.5 is `500M`."""
    megabytes = max(1, round(number * 1000))
    return f"{megabytes // 1000}G" if megabytes % 1000 == 0 else f"{megabytes}M"


def thousandths(number: float) -> str:
    """A number, such as that of cores, to a thousandth: 2 is `2`, 0.1 is `100m`."""
    milli = max(1, round(number * 1000))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that are neither None nor empty."""
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [])}


def pull_secrets(plan: ClusterPlan) -> list[dict[str, str]]:
    """Return the Secrets with the credentials of the image's registry, as pods have them."""
    return [{"name": name} for name in plan.image_pull_secrets]


def spread(labels: Mapping[str, str], topology: str) -> dict[str, Any]:
    """Return the constraint that spreads the pods with these labels over nodes or zones, where there are several."""
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
        # Else the pods of the old revision would count, which are about to go.
        "matchLabelKeys": ["pod-template-hash"],
    }
