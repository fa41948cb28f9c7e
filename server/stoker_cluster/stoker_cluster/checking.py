"""What a cluster has that services need, and what the account may do there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker_cluster.access import Cluster, Reference
from stoker_cluster.values import is_label_value

__all__ = ["INSTANCE_TYPE", "has_machines", "said_of_machines", "survey"]

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""The label of nodes that says of which size their machines are."""

_PROFILE: Final = "pod-security.kubernetes.io/enforce"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_BROUGHT: Final = {
    "a Gateway (--gateway)": ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    "KEDA (--autoscaler keda)": ("keda.sh/v1alpha1", "ScaledObject"),
    "Prometheus' operator (--pod-monitor)": ("monitoring.coreos.com/v1", "PodMonitor"),
    "dynamic resource allocation (--dra)": ("resource.k8s.io/v1", "ResourceClaimTemplate"),
    "KServe": ("serving.kserve.io/v1beta1", "InferenceService"),
}
# What `apply` asks for: the verb, the resource, its group, a part of it.
_RIGHTS: Final = (
    *(("patch", resource, "", "") for resource in ("configmaps", "services")),
    ("patch", "deployments", "apps", ""),
    ("patch", "networkpolicies", "networking.k8s.io", ""),
    ("patch", "poddisruptionbudgets", "policy", ""),
    *((verb, "secrets", "", "") for verb in ("get", "create", "patch")),
    *((verb, "pods", "", "") for verb in ("list", "watch", "patch")),
    ("get", "pods", "", "log"),
    ("get", "pods", "", "portforward"),
)


def survey(cluster: Cluster, namespace: str) -> Iterator[str]:
    """Give what there is, a line each.

    Args:
        cluster: The cluster.
        namespace: Where services are to be.

    Raises:
        ClusterError: The cluster cannot be asked.
    """
    version = cluster.get("/version")
    yield f"{cluster.context} is Kubernetes {version['gitVersion']}"
    yield from _gpus(cluster)
    for name, (api_version, kind) in _BROUGHT.items():
        yield f"{name}: {'yes' if cluster.knows(api_version, kind) else f'no, it has no {kind}'}"
    yield from _namespace(cluster, namespace)
    if cluster.may("list", "storageclasses", None, "storage.k8s.io"):
        yield f"storage classes: {', '.join(_classes(cluster)) or 'none'}"
    denied = [
        " ".join(["/".join(filter(None, [resource, part])), verb])
        for verb, resource, group, part in _RIGHTS
        if not cluster.may(verb, resource, namespace, group, part)
    ]
    yield f"the account may not: {', '.join(denied)}" if denied else "the account may do what apply does"


def has_machines(cluster: Cluster, size: str) -> bool:
    """Whether nodes say that they are of this size; not if the account may not list nodes."""
    return bool(_machines(cluster, size))


def said_of_machines(cluster: Cluster, size: str, wanted: int | None) -> str:
    """Return what is said where machines of a size are asked for: none are made, those that are there count.

    Args:
        cluster: The cluster.
        size: Such as `Standard_NC6`.
        wanted: How many are asked for, if that is said.
    """
    nodes = _machines(cluster, size)
    if not nodes:
        return f"no node of the cluster says that it is a {size}; pods may run on any"
    gpus = sum(
        int(amount)
        for node in nodes
        for resource, amount in node["status"].get("allocatable", {}).items()
        if _is_gpu(resource)
    )
    asked = "" if wanted is None else f", {wanted} asked for"
    count = "1 node is" if len(nodes) == 1 else f"{len(nodes)} nodes are"
    return f"{count} a {size}, with {gpus} GPUs{asked}; none are made"


def _machines(cluster: Cluster, size: str) -> list[dict[str, Any]]:
    if not is_label_value(size) or not cluster.may("list", "nodes", None):
        return []
    return cluster.list("v1", "Node", labels=f"{INSTANCE_TYPE}={size}")


def _gpus(cluster: Cluster) -> Iterator[str]:
    """GPUs and parts of them that pods can be given, by the type of the machine."""
    if not cluster.may("list", "nodes", None):
        yield "GPUs: the account may not list nodes"
        return
    found: Counter[tuple[str, str]] = Counter()
    for node in cluster.list("v1", "Node"):
        machine = node["metadata"].get("labels", {}).get(INSTANCE_TYPE, "machines of no said type")
        for resource, amount in node["status"].get("allocatable", {}).items():
            if _is_gpu(resource):
                found[machine, resource] += int(amount)
    for (machine, resource), amount in sorted(found.items()):
        yield f"{machine}: {amount} {resource}"
    if not found:
        yield "GPUs: none; a device plugin makes them known"


def _is_gpu(resource: str) -> bool:
    return resource.endswith("/gpu") or resource.startswith("nvidia.com/mig-")


def _namespace(cluster: Cluster, namespace: str) -> Iterator[str]:
    if not cluster.may("get", "namespaces", None):
        yield f"namespace {namespace}: the account may not read it"
        return
    found = cluster.find(Reference("v1", "Namespace", None, namespace))
    if found is None:
        yield f"namespace {namespace}: not there; --create-namespace makes it"
        return
    profile = found["metadata"].get("labels", {}).get(_PROFILE)
    yield f"namespace {namespace}: {f'enforces the profile {profile}' if profile else 'enforces no profile'}"


def _classes(cluster: Cluster) -> Iterator[str]:
    for one in cluster.list("storage.k8s.io/v1", "StorageClass"):
        metadata: Mapping[str, Any] = one["metadata"]
        is_default = metadata.get("annotations", {}).get(_DEFAULT_CLASS) == "true"
        yield f"{metadata['name']} (default)" if is_default else str(metadata["name"])
