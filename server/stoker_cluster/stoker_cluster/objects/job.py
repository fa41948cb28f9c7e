"""The Job of offline scoring: a pod for each shard."""

from __future__ import annotations

from typing import Any, Final

from stoker.settings.names import read_address
from stoker_cluster.objects.metadata import (
    CONTAINER_SECURITY,
    HOME_VARIABLE,
    POD_SECURITY,
    TMP_MOUNT,
    TMP_VOLUME,
    manifest,
    workspace_volume,
)
from stoker_cluster.objects.model_volumes import model_mounts, model_volumes
from stoker_cluster.objects.pod import resource_amounts, toleration
from stoker_cluster.plan import JobPlan
from stoker_cluster.readers import MODELS_FOLDER

_DATA: Final = "/data"
_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_HOPELESS: Final = (2, 3)
"""Exit codes of `stoker` for settings, files and models that another try would not mend."""


def job(plan: JobPlan) -> list[dict[str, Any]]:
    """Return the Job."""
    labels = {
        "app.kubernetes.io/name": "stoker",
        "app.kubernetes.io/instance": plan.name,
        "app.kubernetes.io/component": "offline",
        "app.kubernetes.io/managed-by": "stoker",
    }
    place = {} if plan.namespace is None else {"namespace": plan.namespace}
    spec = {
        "completionMode": "Indexed",
        "completions": plan.shards,
        "parallelism": min(plan.parallelism or plan.shards, plan.shards),
        "backoffLimitPerIndex": plan.retries,
        "podFailurePolicy": {
            "rules": [
                # A drained node is not a failure.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "stoker", "operator": "In", "values": list(_HOPELESS)},
                },
            ]
        },
        "template": {"metadata": {"labels": labels}, "spec": _pod(plan)},
    }
    metadata = {"name": plan.name, **place, "labels": labels}
    return [manifest("batch/v1", "Job", metadata, spec=spec)]


def _pod(plan: JobPlan) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": POD_SECURITY,
    }
    taints = ["nvidia.com/gpu", *plan.tolerations] if plan.gpus else list(plan.tolerations)
    if taints:
        spec["tolerations"] = [toleration(taint) for taint in dict.fromkeys(taints)]
    spec["containers"] = [_container(plan)]
    spec["volumes"] = _volumes(plan)
    return spec


def _container(plan: JobPlan) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "stoker",
        "image": plan.image,
        # The image's own entry point serves.
        "command": ["stoker", "offline"],
        "args": [
            _in_pod(plan.model),
            "--input",
            *(f"{_DATA}/{path}" for path in plan.inputs),
            "--output",
            f"{_DATA}/{plan.output}",
            "--shard",
            f"$(SHARD)/{plan.shards}",
            *(["--device", "cuda:0"] if plan.gpus else []),
            *plan.options,
        ],
        "env": [
            {"name": "SHARD", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
            {"name": "STOKER_WORKSPACE", "value": "/workspace"},
            HOME_VARIABLE,
        ],
    }
    resources = _resources(plan)
    if resources:
        container["resources"] = resources
    container["securityContext"] = CONTAINER_SECURITY
    container["volumeMounts"] = _mounts(plan)
    return container


def _in_pod(model: str) -> str:
    """Return a model's path in the pod; paths are relative to its models, addresses stay."""
    return model if model.startswith("/") or read_address(model) else f"{MODELS_FOLDER}/{model}"


def _resources(plan: JobPlan) -> dict[str, Any]:
    requests = resource_amounts(plan.cpu_cores, plan.memory_gb)
    resources: dict[str, Any] = {"requests": requests} if requests else {}
    if plan.gpus:
        resources["limits"] = {plan.gpu_resource: plan.gpus}
    return resources


def _mounts(plan: JobPlan) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "data", "mountPath": _DATA},
        {"name": "workspace", "mountPath": "/workspace"},
        TMP_MOUNT,
    ]
    return mounts + model_mounts(plan.models)


def _volumes(plan: JobPlan) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": plan.data}},
        workspace_volume(plan.workspace_gb),
        TMP_VOLUME,
    ]
    return volumes + model_volumes(plan.models)
