"""Stoker's own autoscaler in a cluster: its Deployment, account and rights."""

from __future__ import annotations

import math
from typing import Any, Final

from stoker_cluster.objects.metadata import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    account_objects,
    filled,
    manifest,
    own_metadata,
    pull_secrets,
)
from stoker_cluster.objects.volumes import HOME_VARIABLE, TMP, contents_of, mounts_of, volume
from stoker_cluster.plan import ClusterPlan

_KEY_FOLDER: Final = "/run/secrets/stoker"
_HEARTBEAT_FILE: Final = "/tmp/heartbeat"  # noqa: S108  # a volume of the pod
_REQUESTS: Final = {"cpu": "50m", "memory": "128M"}


def autoscaler(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the Deployment of the autoscaler, its account and rights, if the plan has one."""
    if plan.autoscaler != "stoker":
        return []
    metadata = own_metadata(plan, plan.autoscaler_name)
    return [*account_objects(metadata, _rules(plan)), _deployment(plan)]


def _rules(plan: ClusterPlan) -> list[dict[str, Any]]:
    return [
        _rule("apps", "deployments", ["get"], plan.instance),
        _rule("apps", "deployments/scale", ["patch"], plan.instance),
        _rule("discovery.k8s.io", "endpointslices", ["list"]),
        # For deletion costs, which decide the pods to remove first.
        _rule("", "pods", ["patch"]),
    ]


def _rule(group: str, resource: str, verbs: list[str], name: str | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": [group], "resources": [resource], "verbs": verbs}
    return rule if name is None else rule | {"resourceNames": [name]}


def _deployment(plan: ClusterPlan) -> dict[str, Any]:
    metadata = own_metadata(plan, plan.autoscaler_name)
    labels = metadata["labels"]
    picked = ("app.kubernetes.io/name", "app.kubernetes.io/instance")
    spec = {
        "replicas": 1,
        # One at a time: two would mark pods for each other's decisions.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {name: labels[name] for name in picked}},
        "template": {"metadata": {"labels": labels}, "spec": _pod(plan)},
    }
    return manifest("apps/v1", "Deployment", metadata, spec=spec)


def _pod(plan: ClusterPlan) -> dict[str, Any]:
    arguments = [plan.instance, "--namespace", plan.namespace, "--heartbeat-file", _HEARTBEAT_FILE]
    if plan.servers_service != plan.instance:
        # The Service with the Deployment's name leads to the router.
        arguments += ["--service", plan.servers_service]
    if not plan.scaling_range[0]:
        arguments += ["--router", plan.name]
    volumes = [TMP]
    if plan.server.get("metrics_auth"):
        arguments += ["--key-file", f"{_KEY_FOLDER}/primary"]
        secret = {
            "secretName": plan.keys_secret,
            "defaultMode": 0o440,
            "items": [{"key": "primary", "path": "primary"}],
        }
        volumes.append(volume("keys", {"secret": secret}, _KEY_FOLDER, readOnly=True))
    container = {
        "name": "autoscaler",
        "image": plan.image,
        "command": ["stoker", "autoscale"],
        "args": arguments,
        "env": [HOME_VARIABLE],
        "resources": {"requests": dict(_REQUESTS)},
        "livenessProbe": _liveness(plan),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts_of(volumes),
    }
    return filled(
        serviceAccountName=plan.autoscaler_name,
        automountServiceAccountToken=True,
        enableServiceLinks=False,
        securityContext=POD_SECURITY,
        imagePullSecrets=pull_secrets(plan),
        containers=[container],
        volumes=contents_of(volumes),
    )


def _liveness(plan: ClusterPlan) -> dict[str, Any]:
    """Return the probe of the file that the autoscaler touches after each look at the cluster.

    The file must be younger than two intervals of the autoscaler and two minutes.
    """
    minutes = math.ceil(2 * (plan.autoscale_refresh_s or 1) / 60) + 2
    return {
        "exec": {"command": ["sh", "-c", f'test -n "$(find {_HEARTBEAT_FILE} -mmin -{minutes})"']},
        "initialDelaySeconds": 60,
        "periodSeconds": 20,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }
