"""The Service: one address for all pods of a Deployment."""

from __future__ import annotations

from typing import Any

from stoker_cluster.objects.metadata import metadata, selector
from stoker_cluster.plan import ClusterPlan

__all__ = ["service"]


def service(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the Service, HTTP on port 80 as on Azure, and gRPC on the port of the pods."""
    ports: list[dict[str, Any]] = [
        {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    ]
    if plan.grpc_port:
        # HTTP/2 without TLS, said so that gateways need not guess.
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
    return [{"apiVersion": "v1", "kind": "Service", "metadata": metadata(plan, name), "spec": spec}]
