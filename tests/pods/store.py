"""A store of models in the cluster of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.pods.service import place

from stoker_cluster.access import Cluster
from stoker_cluster.objects.store import store

__all__ = ["start_store"]


def start_store(cluster: Cluster, plane: ControlPlane, namespace: str, disk: Path) -> str:
    """Start the store on a disk of this machine; returns where it answers."""
    disk.mkdir(parents=True)
    # A folder of the machine is given to no group, as other disks are.
    disk.chmod(0o777)
    name = f"{namespace}-store"
    spec: dict[str, Any] = {
        "capacity": {"storage": "1G"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(disk)},
        "claimRef": {"namespace": namespace, "name": "stoker-store"},
        "storageClassName": "by-hand",
    }
    disk_object = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    plane.create("/api/v1/persistentvolumes", disk_object)
    for content in store("stoker:2", namespace, size_gb=1, storage_class="by-hand"):
        cluster.apply(content)
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    plane.eventually(
        f"{deployments}/stoker-store", lambda found: found["status"].get("readyReplicas") == 1, within_s=180
    )
    host, port = place(cluster, namespace, "stoker-store")
    return f"http://{host}:{port}"
