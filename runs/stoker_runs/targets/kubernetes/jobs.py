"""Jobs of Kubernetes: the object for an attempt, and its state in the cluster.

An attempt is one Job, Indexed with a pod for each node (decision 65). Pods are not started again: after a failure the
runner decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker_runs.records.record import Definition
from stoker_runs.targets.definitions import Target

_KEPT_S: Final = 86_400
"""How long a Job is kept that no runner removes."""
_AFTER_GRACE_S: Final = 15
_ADDRESS: Final = {"fieldRef": {"fieldPath": "status.podIP"}}
_GPU: Final = "nvidia.com/gpu"
_UNITS: Final = {"b": "", "k": "Ki", "m": "Mi", "g": "Gi"}
_RUN_LABEL: Final = "stoker.dev/run"
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
"""The label of pods with the name of their Job."""


class JobState(Struct, frozen=True):
    """The state of a Job in the cluster.

    Attributes:
        is_over: Whether it has succeeded or failed, so that none of its pods is running.
        reason: What its pods wait for, or why it failed; empty for none.
    """

    is_over: bool
    reason: str = ""


def job_object(
    name: str,
    namespace: str,
    target: Target,
    command: Sequence[str],
    workspace_dir: Path,
    definition: Definition,
) -> dict[str, Any]:
    """Return the Job of an attempt.

    Args:
        command: The command of each pod, in which `$(HOST)` is its address and `$(JOB_COMPLETION_INDEX)` its number.
        workspace_dir: The pods run as its owner, so that all files are that user's.
    """
    labels = {
        "app.kubernetes.io/name": "stoker-run",
        "app.kubernetes.io/managed-by": "stoker",
        _RUN_LABEL: name,
    }
    owner = workspace_dir.stat()
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(definition.grace_s) + _AFTER_GRACE_S,
        "securityContext": {
            "runAsUser": owner.st_uid,
            "runAsGroup": owner.st_gid,
            "runAsNonRoot": owner.st_uid != 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(target, command, workspace_dir, definition)],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": target.settings["claim"]}},
            {
                "name": "shared-memory",
                "emptyDir": {
                    "medium": "Memory",
                    "sizeLimit": _quantity(target.settings.get("shm_size", "2g")),
                },
            },
        ],
    }
    if definition.nodes > 1:
        pod["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_apart(name)]}
        }
    spec: dict[str, Any] = {
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": _KEPT_S,
        "completionMode": "Indexed",
        "completions": definition.nodes,
        "parallelism": definition.nodes,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _container(
    target: Target, command: Sequence[str], workspace_dir: Path, definition: Definition
) -> dict[str, Any]:
    settings = target.settings
    return {
        "name": "run",
        "image": definition.container.get("image") or settings["image"],
        "command": list(command),
        # Its user may have no folder in the image.
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HOST", "valueFrom": _ADDRESS}],  # noqa: S108
        "resources": _resources(settings, definition),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "workspace", "mountPath": str(target.mounted_folder(workspace_dir))},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }


def _resources(settings: Mapping[str, Any], definition: Definition) -> dict[str, Any]:
    requests: dict[str, str] = {"cpu": str(definition.cores)}
    limits: dict[str, str] = {}
    if "memory" in settings:
        limits["memory"] = requests["memory"] = _quantity(settings["memory"])
    if definition.gpus:
        limits[_GPU] = str(definition.gpus)
    return {"requests": requests, "limits": limits}


def _quantity(size: str) -> str:
    """Return a size such as `16g` as Kubernetes writes it."""
    unit = size[-1].lower()
    return size[:-1] + _UNITS[unit] if unit in _UNITS else size


def _apart(name: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {_RUN_LABEL: name}}, "topologyKey": "kubernetes.io/hostname"}


def state_of(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> JobState:
    """Return what the objects of a Job and of its pods say."""
    status = job.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition["type"] in ("Complete", "Failed"):
            reasons = [reason for pod in pods if (reason := _end_reason(pod))]
            return JobState(is_over=True, reason=next(iter(reasons), "") or condition.get("message") or "")
    reasons = [reason for pod in pods if (reason := _wait_reason(pod))]
    if not pods:
        reasons = ["no pod has been created; kubectl describe says why"]
    return JobState(is_over=False, reason=next(iter(reasons), ""))


def _end_reason(pod: Mapping[str, Any]) -> str:
    """Return why a pod failed; empty for one that did not."""
    status = pod.get("status") or {}
    if status.get("phase") != "Failed":
        return ""
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return "the pod was killed, out of memory"
        if ended.get("exitCode"):
            return f"the pod ended with status {ended['exitCode']}"
    reason = " ".join(str(status[name]) for name in ("reason", "message") if status.get(name))
    return reason or "the pod failed"


def _wait_reason(pod: Mapping[str, Any]) -> str:
    """Return what a pod waits for; empty for one that runs."""
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return ""
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = ": ".join(str(waiting[name]) for name in ("reason", "message") if waiting.get(name))
        if reason:
            return reason
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return "the pod is starting"
