"""The deployment file that the server in a pod reads, as a ConfigMap holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker_cluster.plan import ClusterPlan

__all__ = ["CONFIG_FOLDER", "HTTP_PORT", "KEYS_FOLDER", "pod_file"]

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
# Routers look at each pod once a second, and keep its callers waiting from then on until there is another one.
_DRAIN_BEHIND_A_ROUTER_S: Final = 5
_OF_THE_POD: Final = ("host", "port", "grpc_port", "keys_dir")
_MOST_FRONTENDS: Final = 8


def pod_file(plan: ClusterPlan) -> dict[str, Any]:
    """Return what the deployment file of the pod holds; what the plan's own says wins over what is usual here."""
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
    """The devices that the pod has been given; where one is missing, its start fails and says why."""
    count = plan.gpu_count
    if count == 0:
        return "cpu"
    if "mig" in plan.gpu_name:
        # It has a UUID that nobody knows before, and as cuda:0 would be its whole GPU.
        return "auto"
    return [f"cuda:{number}" for number in range(count)]
