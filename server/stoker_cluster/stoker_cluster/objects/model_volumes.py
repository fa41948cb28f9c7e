"""Volumes of the models: in the image, on a claim, or in an image volume."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.readers import MODELS_FOLDER

_NAME: Final = "models"


def model_mounts(place: str) -> list[dict[str, Any]]:
    """Return the read-only mounts of the models; none if the image contains them."""
    if place == "image":
        return []
    _, folder = claim_of(place)
    mount = {"name": _NAME, "mountPath": MODELS_FOLDER, "readOnly": True}
    return [mount | ({"subPath": folder} if folder else {})]


def model_volumes(place: str) -> list[dict[str, Any]]:
    """Return the volumes of the models; none if the image contains them."""
    if place == "image":
        return []
    if place.startswith("oci://"):
        return [{"name": _NAME, "image": {"reference": place.removeprefix("oci://")}}]
    claim, _ = claim_of(place)
    return [{"name": _NAME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]


def claim_of(place: str) -> tuple[str, str]:
    """Return the claim of the models and the folder in it; both are empty where no claim holds them."""
    if not place.startswith("pvc://"):
        return "", ""
    claim, _, folder = place.removeprefix("pvc://").partition("/")
    return claim, folder.strip("/")
