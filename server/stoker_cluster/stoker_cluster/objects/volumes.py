"""Volumes of pods, each with the places at which the container has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from stoker_cluster.objects.metadata import gigabytes
from stoker_cluster.plan import WORKSPACE_GB
from stoker_cluster.readers import MODELS_FOLDER

WORKSPACE: Final = "/workspace"
"""Where the pod has its workspace."""


class Volume(NamedTuple):
    """A volume of a pod, and the mounts of it."""

    content: dict[str, Any]
    mounts: list[dict[str, Any]]


def volume(name: str, content: dict[str, Any], path: str, **mount: Any) -> Volume:
    """Return a volume that the container has at one place."""
    return Volume({"name": name, **content}, [{"name": name, "mountPath": path, **mount}])


def claim(name: str) -> dict[str, Any]:
    """Return the content of a volume that a claim holds."""
    return {"persistentVolumeClaim": {"claimName": name}}


TMP: Final = volume("tmp", {"emptyDir": {"sizeLimit": "4G"}}, "/tmp")  # noqa: S108
"""The pod's folder of temporary files. Libraries keep caches there; the user's own folder is not to be written."""
HOME_VARIABLE: Final = {"name": "HOME", "value": "/tmp"}  # noqa: S108


def workspace(size_gb: float = WORKSPACE_GB) -> Volume:
    """Return the volume of a pod's workspace, whose pod is evicted above this size in GB."""
    return volume("workspace", {"emptyDir": {"sizeLimit": gigabytes(size_gb)}}, WORKSPACE)


def models(place: str) -> list[Volume]:
    """Return the volume of the models, which the pod only reads; none if the image contains them."""
    if place == "image":
        return []
    if place.startswith("oci://"):
        content: dict[str, Any] = {"image": {"reference": place.removeprefix("oci://")}}
        return [volume("models", content, MODELS_FOLDER, readOnly=True)]
    name, folder = claim_of(place)
    content = {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
    inside = {"subPath": folder} if folder else {}
    return [volume("models", content, MODELS_FOLDER, readOnly=True, **inside)]


def claim_of(place: str) -> tuple[str, str]:
    """Return the claim of the models and the folder in it; both are empty where no claim holds them."""
    if not place.startswith("pvc://"):
        return "", ""
    name, _, folder = place.removeprefix("pvc://").partition("/")
    return name, folder.strip("/")


def contents_of(volumes: Iterable[Volume]) -> list[dict[str, Any]]:
    """Return the volumes as pods have them."""
    return [one.content for one in volumes]


def mounts_of(volumes: Iterable[Volume]) -> list[dict[str, Any]]:
    """Return the mounts as containers have them."""
    return [mount for one in volumes for mount in one.mounts]
