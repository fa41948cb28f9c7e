"""The version, GPUs, add-ons and storage classes of a cluster, and the rights of an account in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.system.wording import format_count
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.readers import is_label_value

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""The node label with the size of the machine."""

_PROFILE: Final = "pod-security.kubernetes.io/enforce"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_ADD_ONS: Final = {
    "a Gateway (--gateway)": ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    "KEDA (--autoscaler keda)": ("keda.sh/v1alpha1", "ScaledObject"),
    "Prometheus' operator (--pod-monitor)": ("monitoring.coreos.com/v1", "PodMonitor"),
    "dynamic resource allocation (--dra)": ("resource.k8s.io/v1", "ResourceClaimTemplate"),
    "KServe": ("serving.kserve.io/v1beta1", "InferenceService"),
}
# The rights that `apply` needs: verb, resource, group, subresource.
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
    """Yield what the cluster offers, a line each."""
    version = cluster.get("/version")
    yield f"{cluster.context} is Kubernetes {version['gitVersion']}"
    yield from _gpus(cluster)
    for name, (api_version, kind) in _ADD_ONS.items():
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
    """Whether there are nodes of this size; false if the account may not list nodes."""
    return bool(_machines(cluster, size))


def describe_machines(cluster: Cluster, size: str, wanted: int | None) -> str:
    """Describe the nodes of a size that a plan asks for; Stoker makes none.

    Args:
        size: Such as `Standard_NC6`.
        wanted: The number of nodes that the plan asks for, if any.
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
    wanted_text = "" if wanted is None else f", {wanted} asked for"
    nodes_text, gpus_text = format_count(len(nodes), "node"), format_count(gpus, "GPU")
    return f"{nodes_text} of size {size}, with {gpus_text}{wanted_text}; none are made"


def _machines(cluster: Cluster, size: str) -> list[dict[str, Any]]:
    if not is_label_value(size) or not cluster.may("list", "nodes", None):
        return []
    return cluster.list("v1", "Node", labels=f"{INSTANCE_TYPE}={size}")


def _gpus(cluster: Cluster) -> Iterator[str]:
    """Yield the allocatable GPUs and MIG devices by machine type."""
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
