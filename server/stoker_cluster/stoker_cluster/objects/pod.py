"""The pods of a service and their Deployment: containers, probes, resources, volumes and rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from stoker_cluster.objects.configuration import CONFIG_FOLDER, HTTP_PORT, KEYS_FOLDER, pod_file
from stoker_cluster.objects.metadata import (
    ANNOTATIONS,
    CONTAINER_SECURITY,
    POD_SECURITY,
    filled,
    gigabytes,
    manifest,
    metadata,
    pull_secrets,
    selector,
    spread,
    thousandths,
)
from stoker_cluster.objects.volumes import (
    HOME_VARIABLE,
    TMP,
    WORKSPACE,
    Volume,
    claim,
    contents_of,
    models,
    mounts_of,
    volume,
    workspace,
)
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import taint_parts

_READY: Final = "/v2/health/ready"
_LIVE: Final = "/v2/health/live"
_LOOK_S: Final = 2
_MORE_LOOKS: Final = 30
_BEYOND_REQUESTS_S: Final = 5
_COLLECTED: Final = ("data", "modeldata")


def pod_spec(plan: ClusterPlan) -> dict[str, Any]:
    """Return the specification of the pods."""
    volumes = _volumes(plan)
    return filled(
        automountServiceAccountToken=False,
        # A Service called stoker would set STOKER_PORT=tcp://... in the pods beside it.
        enableServiceLinks=False,
        terminationGracePeriodSeconds=_grace_s(plan),
        securityContext=POD_SECURITY,
        runtimeClassName=plan.runtime_class,
        imagePullSecrets=pull_secrets(plan),
        nodeSelector=dict(plan.node_selector or {}),
        tolerations=_tolerations(plan),
        topologySpreadConstraints=[
            spread(selector(plan), key) for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": plan.instance}] if plan.dra else None,
        containers=[_container(plan, volumes)],
        volumes=contents_of(volumes),
    )


def _probes(plan: ClusterPlan) -> dict[str, Any]:
    """Return the probes: startup waits for loading, readiness decides about requests, liveness restarts the pod."""
    liveness = filled(
        httpGet={"path": _LIVE, "port": "http"},
        periodSeconds=plan.liveness_period_s,
        timeoutSeconds=plan.liveness_timeout_s,
        failureThreshold=plan.liveness_failures,
        initialDelaySeconds=plan.liveness_initial_delay_s,
    )
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


def _container(plan: ClusterPlan, volumes: Sequence[Volume]) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    if plan.grpc_port:
        ports.append({"name": "grpc", "containerPort": plan.grpc_port, "protocol": "TCP"})
    return filled(
        name="stoker",
        image=plan.image,
        args=["--config", f"{CONFIG_FOLDER}/deployment.yaml"],
        env=_environment(plan),
        ports=ports,
        resources=_resources(plan),
        **_probes(plan),
        securityContext=CONTAINER_SECURITY,
        volumeMounts=mounts_of(volumes),
    )


def _environment(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the variables. Two of the image would win over the deployment file, so they are set here."""
    variables: list[dict[str, Any]] = [
        {"name": "STOKER_HOST", "value": "0.0.0.0"},  # noqa: S104  # a pod's address is its own
        {"name": "STOKER_PORT", "value": str(HTTP_PORT)},
        {"name": "STOKER_WORKSPACE", "value": WORKSPACE},
        HOME_VARIABLE,
    ]
    if not (plan.takes_keys or plan.server.get("allowed_hosts")):
        # The names of Services and Gateways are the cluster's.
        variables.append({"name": "STOKER_ALLOWED_HOSTS", "value": "*"})
    if plan.collect_to is not None:
        variables.append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    return variables


def _resources(plan: ClusterPlan) -> dict[str, Any]:
    limits = _resource_amounts(plan.cpu_cores_limit, plan.memory_gb_limit)
    if plan.gpu_count and plan.dra is None:
        limits[plan.gpu_name] = plan.gpu_count
    return filled(
        requests=_resource_amounts(plan.cpu_cores, plan.memory_gb),
        limits=limits,
        claims=[{"name": "gpu"}] if plan.dra else None,
    )


def _resource_amounts(cpu_cores: float | None, memory_gb: float | None) -> dict[str, Any]:
    """Return cores and memory as requests or limits have them."""
    return filled(
        cpu=None if cpu_cores is None else thousandths(cpu_cores),
        memory=None if memory_gb is None else gigabytes(memory_gb),
    )


def _tolerations(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Tolerate the taints of the plan, and the one that keeps other pods from nodes with GPUs."""
    of_gpus = ["nvidia.com/gpu"] if plan.gpu_count else []
    return [_toleration(taint) for taint in dict.fromkeys([*of_gpus, *plan.tolerations])]


def _toleration(taint: str) -> dict[str, Any]:
    key, value, effect = taint_parts(taint)
    return filled(
        key=key, operator="Exists" if value is None else "Equal", value=value, effect=effect or None
    )


def _volumes(plan: ClusterPlan) -> list[Volume]:
    config = {"configMap": {"name": f"{plan.instance}-config"}}
    volumes = [volume("config", config, CONFIG_FOLDER, readOnly=True), workspace(plan.workspace_gb), TMP]
    if plan.takes_keys:
        # The group of the pod reads them, others do not.
        secret = {"secret": {"secretName": plan.keys_secret, "defaultMode": 0o440}}
        volumes.append(volume("keys", secret, KEYS_FOLDER, readOnly=True))
    volumes += models(plan.models)
    if plan.collect_to is not None:
        mounts = [
            {"name": "collected", "mountPath": f"{WORKSPACE}/{kind}", "subPathExpr": f"$(POD_NAME)/{kind}"}
            for kind in _COLLECTED
        ]
        volumes.append(Volume({"name": "collected", **claim(plan.collect_to)}, mounts))
    if plan.later_to is not None:
        volumes.append(volume("later", claim(plan.later_to), f"{WORKSPACE}/later", subPath=plan.name))
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
    labels = metadata(plan, plan.instance)["labels"]
    spec = filled(
        # Where something else chooses the number, each `apply` would set it back.
        replicas=plan.fixed_replicas,
        selector={"matchLabels": selector(plan)},
        strategy={"type": "RollingUpdate", "rollingUpdate": _rolling_update(plan)},
        minReadySeconds=_READY_FOR_S,
        progressDeadlineSeconds=math.ceil(plan.load_timeout_s) + _BEYOND_LOADING_S,
        revisionHistoryLimit=_OLD_REVISIONS,
        template={
            "metadata": {"labels": labels, "annotations": {f"{ANNOTATIONS}/config": fingerprint}},
            "spec": pod_spec(plan),
        },
    )
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
