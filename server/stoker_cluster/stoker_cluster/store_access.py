"""Bringing files to the store of a namespace from outside the cluster: by way of the API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stoker.errors import ClusterError
from stoker_cluster.access import Cluster
from stoker_cluster.forwarding import forwarding
from stoker_cluster.objects.store import STORE_NAME, STORE_PORT
from stoker_cluster.standing import is_ready
from stoker_cluster.store_client import push
from stoker_cluster.store_tree import split_address

__all__ = ["push_to_cluster", "stored_at"]


class _StorePods:
    """The pod of the store."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self.instance = STORE_NAME

    def ready_pods(self) -> list[str]:
        """Its name, if it can answer."""
        pods = self._cluster.list("v1", "Pod", self.namespace, f"app.kubernetes.io/name={STORE_NAME}")
        return [
            pod["metadata"]["name"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
        ]


def stored_at(namespace: str, digest: str) -> str:
    """Return the address of a tree in the store of a namespace, as pods have it."""
    return f"http://{STORE_NAME}.{namespace}:{STORE_PORT}/{digest}"


def push_to_cluster(
    cluster: Cluster, namespace: str, base: Path, path: str, say: Callable[[str], object]
) -> str:
    """Bring a folder to the store of a namespace; returns its address as pods have it.

    Args:
        cluster: The cluster.
        namespace: The namespace.
        base: The folder that becomes the root of the tree.
        path: What of it is brought there.
        say: Takes lines for the user.

    Raises:
        ClusterError: There is no store that answers.
        OperatorError: It refuses a file.
    """
    pods = _StorePods(cluster, namespace)
    if not pods.ready_pods():
        raise ClusterError(
            f"there is no store in namespace {namespace} that answers; make one with stoker kubernetes store --image "
            f"IMAGE --namespace {namespace} | kubectl apply -f -"
        )
    with forwarding(cluster, pods, 0, say, STORE_PORT) as port:
        address = push([path], base, f"http://127.0.0.1:{port}", lambda line: say(f"  {line}"))
    return stored_at(namespace, split_address(address)[1])
