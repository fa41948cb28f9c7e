"""The machines of a cluster: how many nodes of a size it has, and their GPUs."""

from __future__ import annotations

from typing import Any, Final

from stoker.system.wording import format_count
from stoker_cluster.access import Cluster
from stoker_cluster.readers import is_label_value

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""The node label with the size of the machine."""


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


def _is_gpu(resource: str) -> bool:
    return resource.endswith("/gpu") or resource.startswith("nvidia.com/mig-")
