"""The store of models in a namespace: one pod with a disk, from which other pods fetch theirs."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.objects.metadata import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    TMP_MOUNT,
    TMP_VOLUME,
    gigabytes,
    manifest,
)

STORE_PORT: Final = 8090
"""The port of the store's pod and Service."""

STORE_NAME: Final = "stoker-store"
"""The name of a namespace's store."""

_FOLDER: Final = "/store"
_LABELS: Final = {
    "app.kubernetes.io/name": STORE_NAME,
    "app.kubernetes.io/component": "store",
    "app.kubernetes.io/managed-by": "stoker",
}
_SELECTOR: Final = {"app.kubernetes.io/name": STORE_NAME}


def store(
    image: str, namespace: str | None = None, size_gb: float = 100.0, storage_class: str | None = None
) -> list[dict[str, Any]]:
    """Return the objects of the store.

    Args:
        namespace: Where it is; None is that of the context.
        size_gb: Size of its disk in GB of 10⁹ bytes; the store uses 95 % of it.
        storage_class: The StorageClass; None for the default one.
    """
    metadata: dict[str, Any] = {"name": STORE_NAME}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = _LABELS
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": gigabytes(size_gb)}},
    }
    if storage_class is not None:
        claim["storageClassName"] = storage_class
    port = {
        "name": "http",
        "port": STORE_PORT,
        "targetPort": "http",
        "protocol": "TCP",
        "appProtocol": "http",
    }
    deployment = {
        "replicas": 1,
        "selector": {"matchLabels": _SELECTOR},
        # Two pods cannot have the disk at once.
        "strategy": {"type": "Recreate"},
        "template": {"metadata": {"labels": _LABELS}, "spec": _pod(image, size_gb)},
    }
    return [
        manifest("v1", "PersistentVolumeClaim", metadata, spec=claim),
        manifest("v1", "Service", metadata, spec={"selector": _SELECTOR, "ports": [port]}),
        manifest("apps/v1", "Deployment", metadata, spec=deployment),
    ]


def _pod(image: str, size_gb: float) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 2}
    container = {
        "name": "store",
        "image": image,
        "command": ["stoker", "store", "serve", _FOLDER],
        # On a disk that is completely full, not even deleting would work.
        "args": ["--host", "0.0.0.0", "--port", str(STORE_PORT), "--max-gb", f"{size_gb * 0.95:g}"],  # noqa: S104
        "ports": [{"name": "http", "containerPort": STORE_PORT, "protocol": "TCP"}],
        "startupProbe": {**probe, "failureThreshold": 24},
        "readinessProbe": probe,
        "livenessProbe": {**probe, "failureThreshold": 6},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "store", "mountPath": _FOLDER},
            TMP_MOUNT,
        ],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": [
            {"name": "store", "persistentVolumeClaim": {"claimName": STORE_NAME}},
            TMP_VOLUME,
        ],
    }
