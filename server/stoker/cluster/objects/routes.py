"""The HTTPRoute from a Gateway, and how it shares requests out to the versions of an endpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker.cluster.objects.metadata import shared_metadata
from stoker.cluster.plan import ClusterPlan

__all__ = ["routes", "weights"]

_PICKS_VERSION: Final = "azureml-model-deployment"
_WHOLE: Final = 10_000
_HUNDREDTHS: Final = 100
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
    shares = {None: _WHOLE} if plan.version_name is None else weights(_traffic(plan), plan.default_version)
    # The rule with more conditions wins: a caller who names a version gets it.
    rules = [
        {
            "matches": [
                {**match, "headers": [{"name": _PICKS_VERSION, "value": version}]} for match in matches
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
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": shared_metadata(plan, plan.name),
            "spec": spec,
        }
    ]


def weights(traffic: Mapping[str, float], default: str | None) -> dict[str, int]:
    """Return the weight of each version in hundredths of a percent.

    Percentages need not add up to 100: what is left goes to the default version, as on Azure.

    Args:
        traffic: The percentages, at most 100 together.
        default: The default version; None is the first.
    """
    leading = next(iter(traffic)) if default is None else default
    shares = {version: round(share * _HUNDREDTHS) for version, share in traffic.items()}
    # Rounding must not lose or make requests either.
    shares[leading] = _WHOLE - sum(share for version, share in shares.items() if version != leading)
    return shares


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
