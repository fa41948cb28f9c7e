"""The router of a service, or of all versions of an endpoint: two pods of HAProxy, with their rights."""

from __future__ import annotations

import math
from typing import Any, Final

from stoker_cluster.objects.configuration import CONFIG_FOLDER, HTTP_PORT, pod_file
from stoker_cluster.objects.metadata import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    ROUTER_METRICS_PORT,
    account_objects,
    disruption_budget,
    filled,
    manifest,
    pull_secrets,
    shared_metadata,
    spread,
)
from stoker_cluster.objects.service import callers
from stoker_cluster.objects.volumes import TMP, contents_of, mounts_of, volume
from stoker_cluster.plan import ClusterPlan

ROUTER_FILE: Final = "router.yaml"
"""The key of the router's settings in its ConfigMap."""

_REPLICAS: Final = 2
# One thread carries tens of thousands of requests a second; without a number there would be one for each core.
_THREADS: Final = 2
_DRAIN_S: Final = 10
_BEYOND_REQUESTS_S: Final = 5
_LOOK_S: Final = 2
_START_LOOKS: Final = 60
_LIVENESS_LOOK_S: Final = 10
_LEAST_HOLD_S: Final = 30


def router(plan: ClusterPlan, settings_file: str) -> list[dict[str, Any]]:
    """Return the objects of the router, if the plan has one.

    All versions of an endpoint have the same ones, so that whichever is rendered gives the whole. Callers reach it by
    the Service that is called as the service.

    Args:
        settings_file: The result of `router_file` as text.
    """
    if not plan.router:
        return []
    return [
        *_rights(plan),
        _settings(plan, settings_file),
        *_network(plan),
        _service(plan),
        _deployment(plan),
        disruption_budget(_named(plan, router_name(plan)), _selector(plan)),
    ]


def router_file(plan: ClusterPlan) -> dict[str, Any]:
    """Return the settings of the router, as it reads them from its ConfigMap.

    It follows that file: other weights need no other pod.
    """
    content: dict[str, Any] = {
        "host": "*",
        "port": HTTP_PORT,
        "metrics_port": ROUTER_METRICS_PORT,
        "service": plan.name if plan.version_name is not None else plan.servers_service,
    }
    if plan.version_name is not None:
        content["traffic"] = dict(plan.traffic or {plan.version_name: 100.0})
        content["default_version"] = plan.default_version or next(iter(content["traffic"]))
    content["timeout_ms"] = math.ceil(plan.timeout_s * 1000)
    content |= _limits(plan)
    return content | {"hold_s": _hold_s(plan), "threads": _THREADS, "drain_grace_s": _DRAIN_S}


def _hold_s(plan: ClusterPlan) -> int:
    """How long requests wait while there is no pod: callers are as patient as they may have to be anyway."""
    return max(_LEAST_HOLD_S, math.ceil(plan.timeout_s))


def _limits(plan: ClusterPlan) -> dict[str, int]:
    """Return the concurrent requests of a pod over all models, and the wait of others, if each model has a limit."""
    models = pod_file(plan)["models"]
    limits = [model.get("max_concurrent_requests") for model in models]
    if not all(limits):
        return {}
    waits = [model["max_queue_wait_ms"] for model in models if "max_queue_wait_ms" in model]
    wait = {"max_queue_wait_ms": math.ceil(max(waits))} if waits else {}
    return {"max_concurrent_requests": sum(map(int, filter(None, limits))), **wait}


def _named(plan: ClusterPlan, name: str) -> dict[str, Any]:
    metadata = shared_metadata(plan, name)
    metadata["labels"] |= {**_selector(plan), "app.kubernetes.io/component": "router"}
    return metadata


def _selector(plan: ClusterPlan) -> dict[str, str]:
    # Not the name of the servers: a Service finds those by it.
    return {"app.kubernetes.io/name": "stoker-router", "app.kubernetes.io/instance": router_name(plan)}


def router_name(plan: ClusterPlan) -> str:
    """Return the name of its objects, except the Service."""
    return f"{plan.name}-router"


def _rights(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return an account that may list the endpoints of its namespace, and nothing else."""
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    return account_objects(_named(plan, router_name(plan)), [rule])


def _settings(plan: ClusterPlan, settings_file: str) -> dict[str, Any]:
    return manifest("v1", "ConfigMap", _named(plan, router_name(plan)), data={ROUTER_FILE: settings_file})


def _network(plan: ClusterPlan) -> list[dict[str, Any]]:
    if not plan.network_policy:
        return []
    ports = [{"port": name, "protocol": "TCP"} for name in ("http", "metrics")]
    spec = {
        "podSelector": {"matchLabels": _selector(plan)},
        # The router reads from the API server, whose address no policy can name.
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": ports, **callers(plan)}],
    }
    return [manifest("networking.k8s.io/v1", "NetworkPolicy", _named(plan, router_name(plan)), spec=spec)]


def _service(plan: ClusterPlan) -> dict[str, Any]:
    port = {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    spec = {"type": plan.service_type, "selector": _selector(plan), "ports": [port]}
    return manifest("v1", "Service", _named(plan, plan.name), spec=spec)


def _deployment(plan: ClusterPlan) -> dict[str, Any]:
    metadata = _named(plan, router_name(plan))
    spec = {
        "replicas": _REPLICAS,
        "selector": {"matchLabels": _selector(plan)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "minReadySeconds": 2,
        "revisionHistoryLimit": 3,
        "template": {"metadata": {"labels": metadata["labels"]}, "spec": _pod(plan)},
    }
    return manifest("apps/v1", "Deployment", metadata, spec=spec)


def _pod(plan: ClusterPlan) -> dict[str, Any]:
    config = {"configMap": {"name": router_name(plan)}}
    volumes = [volume("config", config, CONFIG_FOLDER, readOnly=True), TMP]
    return filled(
        serviceAccountName=router_name(plan),
        automountServiceAccountToken=True,
        enableServiceLinks=False,
        terminationGracePeriodSeconds=_grace_s(plan),
        securityContext=POD_SECURITY,
        imagePullSecrets=pull_secrets(plan),
        topologySpreadConstraints=[spread(_selector(plan), "kubernetes.io/hostname")],
        containers=[_container(plan) | {"volumeMounts": mounts_of(volumes)}],
        volumes=contents_of(volumes),
    )


def _grace_s(plan: ClusterPlan) -> int:
    """Return the seconds from SIGTERM to SIGKILL: the last request may wait for a pod and its answer."""
    return _DRAIN_S + _hold_s(plan) + math.ceil(plan.timeout_s) + _BEYOND_REQUESTS_S


def _container(plan: ClusterPlan) -> dict[str, Any]:
    return {
        "name": "router",
        "image": plan.router_image or plan.image,
        "command": ["stoker", "router"],
        "args": ["--config", f"{CONFIG_FOLDER}/{ROUTER_FILE}"],
        "ports": [
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": ROUTER_METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "128M"}},
        # A first process hears no SIGTERM before it has handlers: one that liveness gives up on as it starts would
        # serve on, and be killed under its requests when the grace is over.
        "startupProbe": _probe("/live", _START_LOOKS),
        "readinessProbe": _probe("/ready", 1),
        "livenessProbe": {**_probe("/live", 3), "periodSeconds": _LIVENESS_LOOK_S},
        "securityContext": CONTAINER_SECURITY,
    }


def _probe(path: str, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "metrics"},
        "periodSeconds": _LOOK_S,
        "timeoutSeconds": _LOOK_S,
        "failureThreshold": failures,
    }
