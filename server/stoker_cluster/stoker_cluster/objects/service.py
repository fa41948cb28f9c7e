"""Access to the pods: Service, HTTPRoute, NetworkPolicy, PodDisruptionBudget, PodMonitor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker_cluster.objects.metadata import (
    ANNOTATIONS,
    disruption_budget,
    manifest,
    metadata,
    selector,
    shared_metadata,
)
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.routing import VERSION_HEADER
from stoker_cluster.traffic_shares import WHOLE, effective_weights


def service(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the Service, HTTP on port 80 as on Azure, and gRPC on the port of the pods."""
    ports: list[dict[str, Any]] = [
        {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    ]
    if plan.grpc_port:
        # The protocol is HTTP/2 without TLS; gateways need this field to know.
        ports.append(
            {
                "name": "grpc",
                "port": plan.grpc_port,
                "targetPort": "grpc",
                "protocol": "TCP",
                "appProtocol": "kubernetes.io/h2c",
            }
        )
    kind = "ClusterIP" if plan.router else plan.service_type
    spec = {"type": kind, "selector": selector(plan), "ports": ports}
    name = plan.servers_service
    return [manifest("v1", "Service", metadata(plan, name), spec=spec)]


# The HTTPRoute of a Gateway, with the shares of versions.


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


_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_KEDA: Final = "keda"


def network(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the policy.

    Callers are the namespace's own pods, those of the Gateway's, of KEDA's and of named ones; where the Service can
    be reached from outside the cluster, everybody. Pods connect to nobody, unless the plan allows it.
    """
    if not plan.network_policy:
        return []
    ports = [{"port": "http", "protocol": "TCP"}]
    if plan.grpc_port:
        ports.append({"port": "grpc", "protocol": "TCP"})
    ingress: dict[str, Any] = {"ports": ports}
    # Requests come from the router's pods in the same namespace.
    ingress |= callers(plan) if not plan.router else _from(_beside_the_gateway(plan))
    spec: dict[str, Any] = {
        "podSelector": {"matchLabels": selector(plan)},
        "policyTypes": ["Ingress"] if plan.allow_egress else ["Ingress", "Egress"],
        "ingress": [ingress],
    }
    return [manifest("networking.k8s.io/v1", "NetworkPolicy", metadata(plan, plan.instance), spec=spec)]


def callers(plan: ClusterPlan) -> dict[str, Any]:
    """Return the ingress rule for callers of the service; without `from` it allows all."""
    if plan.service_type != "ClusterIP":
        return {}
    gateway = [] if plan.gateway is None else [plan.gateway.partition("/")[0]]
    return _from([*gateway, *_beside_the_gateway(plan)])


def _beside_the_gateway(plan: ClusterPlan) -> list[str]:
    return [*([_KEDA] if plan.autoscaler == "keda" else []), *plan.allow_from]


def _from(namespaces: list[str]) -> dict[str, Any]:
    return {"from": [{"podSelector": {}}, *(_of(name) for name in dict.fromkeys(namespaces))]}


def _of(namespace: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {_NAME_LABEL: namespace}}}


def disruption(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the budget of the pods."""
    return [disruption_budget(metadata(plan, plan.instance), selector(plan))]


def monitoring(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the PodMonitor, if the plan has one."""
    if not plan.pod_monitor:
        return []
    endpoint: dict[str, Any] = {"port": "http", "path": "/metrics", "interval": "15s"}
    if plan.server.get("metrics_auth"):
        endpoint["authorization"] = {"credentials": {"name": plan.keys_secret, "key": "primary"}}
    return [
        manifest(
            "monitoring.coreos.com/v1",
            "PodMonitor",
            metadata(plan, plan.instance),
            spec={"selector": {"matchLabels": selector(plan)}, "podMetricsEndpoints": [endpoint]},
        )
    ]
