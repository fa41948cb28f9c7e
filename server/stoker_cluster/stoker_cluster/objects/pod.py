"""The pods of a service and their Deployment: containers, probes, resources, volumes and rollout."""

from __future__ import annotations

import math
from typing import Any, Final

from stoker_cluster.objects.configuration import CONFIG_FOLDER, HTTP_PORT, KEYS_FOLDER, pod_file
from stoker_cluster.objects.metadata import (
    ANNOTATIONS,
    CONTAINER_SECURITY,
    HOME_VARIABLE,
    POD_SECURITY,
    TMP_MOUNT,
    TMP_VOLUME,
    cores,
    gigabytes,
    manifest,
    metadata,
    selector,
    workspace_volume,
)
from stoker_cluster.objects.model_volumes import model_mounts, model_volumes
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import taint_parts

_READY: Final = "/v2/health/ready"
_LIVE: Final = "/v2/health/live"
_LOOK_S: Final = 2
_MORE_LOOKS: Final = 30
_BEYOND_REQUESTS_S: Final = 5
_WORKSPACE: Final = "/workspace"
_COLLECTED: Final = {"data": "requests and answers", "modeldata": "what scripts collect"}


def pod_spec(plan: ClusterPlan) -> dict[str, Any]:
    """Return the specification of the pods."""
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # A Service called stoker would set STOKER_PORT=tcp://... in the pods beside it.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace_s(plan),
        "securityContext": POD_SECURITY,
    }
    if plan.runtime_class is not None:
        spec["runtimeClassName"] = plan.runtime_class
    if plan.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in plan.image_pull_secrets]
    if plan.node_selector:
        spec["nodeSelector"] = dict(plan.node_selector)
    tolerations = _tolerations(plan)
    if tolerations:
        spec["tolerations"] = tolerations
    spec["topologySpreadConstraints"] = [
        _spread(plan, key) for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
    if plan.dra is not None:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": plan.instance}]
    spec["containers"] = [_container(plan)]
    spec["volumes"] = _volumes(plan)
    return spec


def _probes(plan: ClusterPlan) -> dict[str, Any]:
    """Return the probes: startup waits for loading, readiness decides about requests, liveness restarts the pod."""
    liveness: dict[str, Any] = {
        "httpGet": {"path": _LIVE, "port": "http"},
        "periodSeconds": plan.liveness_period_s,
        "timeoutSeconds": plan.liveness_timeout_s,
        "failureThreshold": plan.liveness_failures,
    }
    if plan.liveness_initial_delay_s is not None:
        liveness["initialDelaySeconds"] = plan.liveness_initial_delay_s
    ready = {"httpGet": {"path": _READY, "port": "http"}, "periodSeconds": _LOOK_S, "timeoutSeconds": _LOOK_S}
    looks = math.ceil(plan.load_timeout_s / _LOOK_S) + _MORE_LOOKS
    return {
        "startupProbe": {**ready, "failureThreshold": looks},
        "readinessProbe": {**ready, "failureThreshold": 1},
        "livenessProbe": liveness,
    }


def _grace_s(plan: ClusterPlan) -> int:
    """Seconds from SIGTERM to SIGKILL: the drain, the longest request, and the end."""
    return math.ceil(float(pod_file(plan)["drain_grace_s"]) + plan.timeout_s) + _BEYOND_REQUESTS_S


def _container(plan: ClusterPlan) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    if plan.grpc_port:
        ports.append({"name": "grpc", "containerPort": plan.grpc_port, "protocol": "TCP"})
    container: dict[str, Any] = {
        "name": "stoker",
        "image": plan.image,
        "args": ["--config", f"{CONFIG_FOLDER}/deployment.yaml"],
        "env": _environment(plan),
        "ports": ports,
    }
    resources = _resources(plan)
    if resources:
        container["resources"] = resources
    container |= _probes(plan)
    container["securityContext"] = CONTAINER_SECURITY
    container["volumeMounts"] = _mounts(plan)
    return container


def _environment(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the variables. Two of the image would win over the deployment file, so they are set here."""
    variables: list[dict[str, Any]] = [
        {"name": "STOKER_HOST", "value": "0.0.0.0"},  # noqa: S104  # a pod's address is its own
        {"name": "STOKER_PORT", "value": str(HTTP_PORT)},
        {"name": "STOKER_WORKSPACE", "value": _WORKSPACE},
        HOME_VARIABLE,
    ]
    if not (plan.takes_keys or plan.server.get("allowed_hosts")):
        # The names of Services and Gateways are the cluster's.
        variables.append({"name": "STOKER_ALLOWED_HOSTS", "value": "*"})
    if plan.collect_to is not None:
        variables.append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    return variables


def _resources(plan: ClusterPlan) -> dict[str, Any]:
    requests = resource_amounts(plan.cpu_cores, plan.memory_gb)
    limits = resource_amounts(plan.cpu_cores_limit, plan.memory_gb_limit)
    if plan.gpu_count and plan.dra is None:
        limits[plan.gpu_name] = plan.gpu_count
    resources: dict[str, Any] = {}
    if requests:
        resources["requests"] = requests
    if limits:
        resources["limits"] = limits
    if plan.dra is not None:
        resources["claims"] = [{"name": "gpu"}]
    return resources


def resource_amounts(cpu_cores: float | None, memory_gb: float | None) -> dict[str, Any]:
    """Return cores and memory as requests or limits have them."""
    amounts: dict[str, Any] = {}
    if cpu_cores is not None:
        amounts["cpu"] = cores(cpu_cores)
    if memory_gb is not None:
        amounts["memory"] = gigabytes(memory_gb)
    return amounts


def _tolerations(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Of the taint that keeps other pods from nodes with GPUs, and of those that were named."""
    taints = list(plan.tolerations)
    if plan.gpu_count:
        taints.insert(0, "nvidia.com/gpu")
    return [toleration(taint) for taint in dict.fromkeys(taints)]


def toleration(taint: str) -> dict[str, Any]:
    """Return the toleration of a taint NAME[=VALUE][:EFFECT]."""
    key, value, effect = taint_parts(taint)
    result = {"key": key, "operator": "Exists" if value is None else "Equal"}
    if value is not None:
        result["value"] = value
    if effect:
        result["effect"] = effect
    return result


def _spread(plan: ClusterPlan, topology: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(plan)},
        # Else the pods of the old revision would count, which are about to go.
        "matchLabelKeys": ["pod-template-hash"],
    }


def _mounts(plan: ClusterPlan) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "workspace", "mountPath": _WORKSPACE},
        TMP_MOUNT,
    ]
    if plan.takes_keys:
        mounts.append({"name": "keys", "mountPath": KEYS_FOLDER, "readOnly": True})
    mounts += model_mounts(plan.models)
    if plan.collect_to is not None:
        mounts += [
            {"name": "collected", "mountPath": f"{_WORKSPACE}/{kind}", "subPathExpr": f"$(POD_NAME)/{kind}"}
            for kind in _COLLECTED
        ]
    if plan.later_to is not None:
        mounts.append({"name": "later", "mountPath": f"{_WORKSPACE}/later", "subPath": plan.name})
    return mounts


def _volumes(plan: ClusterPlan) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": f"{plan.instance}-config"}},
        workspace_volume(plan.workspace_gb),
        TMP_VOLUME,
    ]
    if plan.takes_keys:
        # The group of the pod reads them, others do not.
        volumes.append({"name": "keys", "secret": {"secretName": plan.keys_secret, "defaultMode": 0o440}})
    volumes += model_volumes(plan.models)
    if plan.collect_to is not None:
        volumes.append({"name": "collected", "persistentVolumeClaim": {"claimName": plan.collect_to}})
    if plan.later_to is not None:
        volumes.append({"name": "later", "persistentVolumeClaim": {"claimName": plan.later_to}})
    return volumes


_READY_FOR_S: Final = 2
_BEYOND_LOADING_S: Final = 120
_OLD_REVISIONS: Final = 3
_MANY_REPLICAS: Final = 20


def workload(plan: ClusterPlan, fingerprint: str) -> list[dict[str, Any]]:
    """Return the Deployment, and the claim template of its GPUs.

    Args:
        fingerprint: What changes when the deployment file of the pods does: new pods read a new one.
    """
    spec: dict[str, Any] = {}
    if plan.fixed_replicas is not None:
        # Where something else chooses the number, each `apply` would set it back.
        spec["replicas"] = plan.fixed_replicas
    labels = metadata(plan, plan.instance)["labels"]
    spec |= {
        "selector": {"matchLabels": selector(plan)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling_update(plan)},
        "minReadySeconds": _READY_FOR_S,
        "progressDeadlineSeconds": math.ceil(plan.load_timeout_s) + _BEYOND_LOADING_S,
        "revisionHistoryLimit": _OLD_REVISIONS,
        "template": {
            "metadata": {"labels": labels, "annotations": {f"{ANNOTATIONS}/config": fingerprint}},
            "spec": pod_spec(plan),
        },
    }
    deployment = manifest("apps/v1", "Deployment", metadata(plan, plan.instance, described=True), spec=spec)
    return [*_claim_templates(plan), deployment]


def _rolling_update(plan: ClusterPlan) -> dict[str, Any]:
    """Pods that come and go at once: without a GPU to spare, a new one would wait beside the old ones for ever."""
    unavailable = plan.max_unavailable
    if unavailable is None:
        unavailable = 0 if plan.surge else 1 if plan.most_replicas < _MANY_REPLICAS else "10%"
    return {"maxSurge": plan.surge, "maxUnavailable": unavailable}


def _claim_templates(plan: ClusterPlan) -> list[dict[str, Any]]:
    if plan.dra is None:
        return []
    exactly = {"deviceClassName": plan.dra, "allocationMode": "ExactCount", "count": plan.gpu_count}
    return [
        manifest(
            "resource.k8s.io/v1",
            "ResourceClaimTemplate",
            metadata(plan, plan.instance),
            spec={"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        )
    ]
