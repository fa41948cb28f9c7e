"""What pods are given: the namespace, the deployment file, their models, and their keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker_cluster.objects.metadata import CONTAINER_SECURITY, TMP_MOUNT, manifest, metadata, shared_metadata
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import MODELS_FOLDER, store_port

HTTP_PORT: Final = 8080
CONFIG_FOLDER: Final = "/etc/stoker"
"""Where the pod finds it, as deployment.yaml."""
KEYS_FOLDER: Final = "/run/secrets/stoker"
"""Where the pod finds its keys."""

_IN_CLUSTERS: Final[Mapping[str, Any]] = {
    # Until the proxies of all nodes and the gateways have heard that the pod goes.
    "drain_grace_s": 10,
    # A Service chooses a pod once for each connection: without an end to them new pods would get none.
    "connection_age_s": 120,
}
# Routers poll each pod once a second; once it drains, they hold its requests until another pod is ready.
_DRAIN_BEHIND_A_ROUTER_S: Final = 5
_OF_THE_POD: Final = ("host", "port", "grpc_port", "keys_dir")
_MOST_FRONTENDS: Final = 8


def pod_file(plan: ClusterPlan) -> dict[str, Any]:
    """Return the content of the pod's deployment file; settings of the plan win over the defaults for clusters."""
    content: dict[str, Any] = {"host": "0.0.0.0", "port": HTTP_PORT}  # noqa: S104  # a pod's address is its own
    if plan.grpc_port:
        content["grpc_port"] = plan.grpc_port
    if plan.takes_keys:
        content["keys_dir"] = KEYS_FOLDER
    content["device"] = _devices(plan)
    if plan.cpu_cores is not None:
        content["frontends"] = max(1, min(_MOST_FRONTENDS, math.floor(plan.cpu_cores) // 2))
    own = {name: value for name, value in plan.server.items() if name not in _OF_THE_POD}
    content |= _IN_CLUSTERS
    if plan.router:
        content["drain_grace_s"] = _DRAIN_BEHIND_A_ROUTER_S
    content |= own
    defaults = dict(plan.model_defaults)
    if plan.cpu_cores is not None:
        defaults.setdefault("threads", max(1, math.floor(plan.cpu_cores)))
    content["models"] = [_model(plan, model, defaults) for model in plan.serves]
    return content


def _model(plan: ClusterPlan, model: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    leading = {"path": model["path"], "name": model.get("name", plan.name)}
    return {**leading, **defaults, **{name: value for name, value in model.items() if name not in leading}}


def _devices(plan: ClusterPlan) -> str | list[str]:
    """Return the devices of the pod's GPUs; if one is missing, the server fails to start with a message."""
    count = plan.gpu_count
    if count == 0:
        return "cpu"
    if "mig" in plan.gpu_name:
        # The UUID of a MIG device is unknown in advance, and cuda:0 would mean its whole GPU.
        return "auto"
    return [f"cuda:{number}" for number in range(count)]


def namespace(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the namespace if the plan creates it; it enforces the restricted Pod Security profile."""
    if not plan.create_namespace:
        return []
    labels = {
        "app.kubernetes.io/managed-by": "stoker",
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    return [manifest("v1", "Namespace", {"name": plan.namespace, "labels": labels})]


def configuration(plan: ClusterPlan, deployment_file: str) -> list[dict[str, Any]]:
    """Return the ConfigMap with the deployment file, which is given as text, and that with the models' address."""
    maps = [_map(plan, f"{plan.instance}-config", {"deployment.yaml": deployment_file})]
    if plan.followed_models is not None:
        # Not in the pod template: a new address must not restart pods.
        maps.append(_map(plan, plan.followed_models, {ADDRESS_FILE: f"{plan.models}\n"}))
    return maps


def _map(plan: ClusterPlan, name: str, data: dict[str, str]) -> dict[str, Any]:
    return manifest("v1", "ConfigMap", metadata(plan, name), data=data)


# Models: in the image, on a claim, in an image volume, or fetched from a store.


ADDRESS_FILE: Final = "address"
"""The key of the models' address in the ConfigMap that pods follow."""

_NAME: Final = "models"
_SERVED: Final = "served-models"
_SERVED_FOLDER: Final = "/etc/stoker-models"


def fetching(place: str, image: str, *, followed: bool = False) -> list[dict[str, Any]]:
    """Return the containers that get models from a store, every file verified; none for other places.

    Args:
        followed: Whether they go on looking for another address, beside the server; else they end before it starts.
    """
    if store_port(place) is None:
        return []
    mounts: list[dict[str, Any]] = [
        {"name": _NAME, "mountPath": MODELS_FOLDER},
        TMP_MOUNT,
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
    """Return the read-only mounts of the models; none if the image contains them."""
    if place == "image":
        return []
    _, folder = _claim(place)
    mount = {"name": _NAME, "mountPath": MODELS_FOLDER, "readOnly": True}
    return [mount | ({"subPath": folder} if folder else {})]


def model_volumes(place: str, followed: str | None = None) -> list[dict[str, Any]]:
    """Return the volumes of the models; none if the image contains them.

    Args:
        followed: The ConfigMap with the followed address, if any.
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


def keys(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the Secret with the keys that were given; without any it is somebody else's, and has to be there.

    Its name is the service's, whatever version of an endpoint the pods are: callers have one set of keys.
    """
    given = {"primary": plan.primary_key, "secondary": plan.secondary_key}
    values = {slot: key for slot, key in given.items() if key}
    if not values:
        return []
    metadata = shared_metadata(plan, plan.keys_secret)
    return [manifest("v1", "Secret", metadata, type="Opaque", stringData=values)]
