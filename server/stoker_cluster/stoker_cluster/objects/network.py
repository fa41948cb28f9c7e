"""The NetworkPolicy: who reaches the pods, and whom they reach."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.objects.metadata import metadata, selector
from stoker_cluster.objects.store import STORE_PORT
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.values import store_port

__all__ = ["callers", "network"]

_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_KEDA: Final = "keda"
_DNS_PORT: Final = 53


def network(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the policy.

    Callers are the namespace's own pods, those of the Gateway's, of KEDA's and of named ones; where the Service can
    be reached from outside the cluster, everybody. Pods connect to nobody but a store, unless the plan allows it.
    """
    if not plan.network_policy:
        return []
    ports = [{"port": "http", "protocol": "TCP"}]
    if plan.grpc_port:
        ports.append({"port": "grpc", "protocol": "TCP"})
    ingress: dict[str, Any] = {"ports": ports}
    # A router's pods are of the namespace, whoever their callers are.
    ingress |= callers(plan) if not plan.router else _from(_beside_the_gateway(plan))
    spec: dict[str, Any] = {
        "podSelector": {"matchLabels": selector(plan)},
        "policyTypes": ["Ingress"] if plan.allow_egress else ["Ingress", "Egress"],
        "ingress": [ingress],
    }
    port = store_port(plan.models)
    if port is not None and not plan.allow_egress:
        spec["egress"] = [_to_the_store(port)]
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(plan, plan.instance),
            "spec": spec,
        }
    ]


def _to_the_store(port: int) -> dict[str, Any]:
    """Names are looked up, and the store's port reached; where it is no policy can say by its name.

    A policy sees the port of the pod behind a Service, not that of the Service.
    """
    ports = [("UDP", _DNS_PORT), ("TCP", _DNS_PORT), ("TCP", port), ("TCP", STORE_PORT)]
    return {"ports": [{"port": number, "protocol": protocol} for protocol, number in dict.fromkeys(ports)]}


def callers(plan: ClusterPlan) -> dict[str, Any]:
    """Return who reaches what callers of the service connect to; without `from` that is everybody."""
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
