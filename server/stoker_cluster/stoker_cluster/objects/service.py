"""Access to the pods: Service, NetworkPolicy, PodDisruptionBudget, PodMonitor."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.objects.metadata import (
    disruption_budget,
    manifest,
    metadata,
    selector,
)
from stoker_cluster.plan import ClusterPlan


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
