"""How models reach a pod: with its image, from a claim, as an image volume, or fetched from a store."""

from __future__ import annotations

from typing import Any, Final

from stoker.cluster.objects.security import CONTAINER_SECURITY
from stoker.cluster.values import MODELS_FOLDER, store_port

__all__ = ["fetching", "model_mounts", "model_volumes"]

_NAME: Final = "models"


def fetching(place: str, image: str) -> list[dict[str, Any]]:
    """Return the init container that gets models from a store, every file verified; none for other places."""
    if store_port(place) is None:
        return []
    container = {
        "name": _NAME,
        "image": image,
        "command": ["stoker", "store", "fetch"],
        "args": [place, MODELS_FOLDER],
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": _NAME, "mountPath": MODELS_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # the pod's own
        ],
    }
    return [container]


def model_mounts(place: str) -> list[dict[str, Any]]:
    """Return how the container sees them: read-only; nothing where they are in the image."""
    if place == "image":
        return []
    _, folder = _claim(place)
    mount = {"name": _NAME, "mountPath": MODELS_FOLDER, "readOnly": True}
    return [mount | ({"subPath": folder} if folder else {})]


def model_volumes(place: str) -> list[dict[str, Any]]:
    """Return the volume that they are in; none where they are in the image."""
    if place == "image":
        return []
    if place.startswith("oci://"):
        return [{"name": _NAME, "image": {"reference": place.removeprefix("oci://")}}]
    if place.startswith("pvc://"):
        claim, _ = _claim(place)
        return [{"name": _NAME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    return [{"name": _NAME, "emptyDir": {}}]


def _claim(place: str) -> tuple[str, str]:
    """The claim and the folder in it."""
    if not place.startswith("pvc://"):
        return "", ""
    claim, _, folder = place.removeprefix("pvc://").partition("/")
    return claim, folder.strip("/")
