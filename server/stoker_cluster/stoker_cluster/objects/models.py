"""How models reach a pod: with its image, from a claim, as an image volume, or fetched from a store."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.objects.security import CONTAINER_SECURITY
from stoker_cluster.values import MODELS_FOLDER, store_port

__all__ = ["ADDRESS_FILE", "fetching", "model_mounts", "model_volumes"]

ADDRESS_FILE: Final = "address"
"""What the address of the models is called in the ConfigMap that pods follow."""

_NAME: Final = "models"
_SERVED: Final = "served-models"
_SERVED_FOLDER: Final = "/etc/stoker-models"


def fetching(place: str, image: str, *, followed: bool = False) -> list[dict[str, Any]]:
    """Return the containers that get models from a store, every file verified; none for other places.

    Args:
        place: Where the models are.
        image: The image of the pods.
        followed: Whether they go on looking for another address, beside the server; else they end before it starts.
    """
    if store_port(place) is None:
        return []
    mounts: list[dict[str, Any]] = [
        {"name": _NAME, "mountPath": MODELS_FOLDER},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # the pod's own
    ]
    if not followed:
        return [_container(_NAME, image, "fetch", place, mounts)]
    mounts.append({"name": _SERVED, "mountPath": _SERVED_FOLDER, "readOnly": True})
    address = f"{_SERVED_FOLDER}/{ADDRESS_FILE}"
    follower = _container("models-follower", image, "follow", address, mounts)
    # Always: it runs beside the server, begins before it and ends after it.
    return [_container(_NAME, image, "fetch", address, mounts), {**follower, "restartPolicy": "Always"}]


def _container(
    name: str, image: str, action: str, address: str, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "command": ["stoker", "store", action],
        "args": [address, MODELS_FOLDER],
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }


def model_mounts(place: str) -> list[dict[str, Any]]:
    """Return how the container sees them: read-only; nothing where they are in the image."""
    if place == "image":
        return []
    _, folder = _claim(place)
    mount = {"name": _NAME, "mountPath": MODELS_FOLDER, "readOnly": True}
    return [mount | ({"subPath": folder} if folder else {})]


def model_volumes(place: str, followed: str | None = None) -> list[dict[str, Any]]:
    """Return the volumes that they are in; none where they are in the image.

    Args:
        place: Where the models are.
        followed: The ConfigMap with the address that is followed, if one is.
    """
    if place == "image":
        return []
    if place.startswith("oci://"):
        return [{"name": _NAME, "image": {"reference": place.removeprefix("oci://")}}]
    if place.startswith("pvc://"):
        claim, _ = _claim(place)
        return [{"name": _NAME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    volumes: list[dict[str, Any]] = [{"name": _NAME, "emptyDir": {}}]
    if followed is not None:
        volumes.append({"name": _SERVED, "configMap": {"name": followed}})
    return volumes


def _claim(place: str) -> tuple[str, str]:
    """The claim and the folder in it."""
    if not place.startswith("pvc://"):
        return "", ""
    claim, _, folder = place.removeprefix("pvc://").partition("/")
    return claim, folder.strip("/")
