"""The HTTPRoute of a Gateway, with the shares of versions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker_cluster.objects.metadata import (
    ANNOTATIONS,
    manifest,
    shared_metadata,
)
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.routing import VERSION_HEADER
from stoker_cluster.traffic_shares import WHOLE, effective_weights

TRAFFIC: Final = f"{ANNOTATIONS}/traffic"
"""The annotation with the percentages of all versions, as `a=80,b=20`."""
DEFAULT_VERSION: Final = f"{ANNOTATIONS}/default-version"
"""The annotation with the default version."""

_HTTP_PORT: Final = 80


def routes(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the HTTPRoute, if the plan names a Gateway.

    All versions of an endpoint have the same one, so that whichever is rendered gives the whole.
    """
    if plan.gateway is None:
        return []
    namespace, _, name = plan.gateway.partition("/")
    spec: dict[str, Any] = {"parentRefs": [{"namespace": namespace, "name": name}]}
    if plan.hostnames:
        spec["hostnames"] = list(plan.hostnames)
    matches = _matches(plan)
    # The server's own answer, 504, comes first.
    timeouts = {"request": f"{math.ceil(plan.timeout_s) + 1}s"}
    # A router shares out itself.
    undivided = plan.version_name is None or plan.router
    shares = {None: WHOLE} if undivided else effective_weights(_traffic(plan), plan.default_version)
    # The rule with more conditions wins: a caller who names a version gets it.
    rules = [
        {
            "matches": [
                {**match, "headers": [{"name": VERSION_HEADER, "value": version}]} for match in matches
            ],
            "timeouts": timeouts,
            "backendRefs": [_backend(plan, version)],
        }
        for version in shares
        if version is not None
    ]
    backends = [_backend(plan, version) | {"weight": weight} for version, weight in shares.items()]
    rules.append({"matches": matches, "timeouts": timeouts, "backendRefs": backends})
    spec["rules"] = rules
    return [
        manifest(
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            shared_metadata(plan, plan.name) | _share_annotations(plan),
            spec=spec,
        )
    ]


def _share_annotations(plan: ClusterPlan) -> dict[str, Any]:
    """Return annotations with the configured percentages, which weights alone do not contain."""
    if plan.version_name is None or plan.router:
        return {}
    traffic = _traffic(plan)
    shares = ",".join(f"{version}={share:g}" for version, share in traffic.items())
    return {"annotations": {TRAFFIC: shares, DEFAULT_VERSION: plan.default_version or next(iter(traffic))}}


def _traffic(plan: ClusterPlan) -> Mapping[str, float]:
    return plan.traffic or {str(plan.version_name): 100.0}


def _matches(plan: ClusterPlan) -> list[dict[str, Any]]:
    """The paths that lead here: all of the hosts that were named, else those with the name of a service in them."""
    if plan.hostnames:
        return [_below("/")]
    return [_below(f"{path}/{name}") for name in plan.services for path in ("/api/v1/service", "/v2/models")]


def _below(path: str) -> dict[str, Any]:
    return {"path": {"type": "PathPrefix", "value": path}}


def _backend(plan: ClusterPlan, version: str | None) -> dict[str, Any]:
    return {"name": plan.name if version is None else f"{plan.name}-{version}", "port": _HTTP_PORT}
