"""Configuration of pods: the namespace, the deployment file, and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker_cluster.objects.metadata import manifest, metadata, shared_metadata
from stoker_cluster.plan import ClusterPlan

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
    """Return the ConfigMap with the deployment file, which is given as text."""
    found = metadata(plan, f"{plan.instance}-config")
    return [manifest("v1", "ConfigMap", found, data={"deployment.yaml": deployment_file})]


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
