"""The Job of offline scoring: a pod for each shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stoker.settings.names import read_address
from stoker_cluster.objects.metadata import CONTAINER_SECURITY, POD_SECURITY, filled, manifest
from stoker_cluster.objects.pod import resource_amounts, tolerations
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
    data = volume("data", claim(plan.data), _DATA)
    volumes = [data, workspace(plan.workspace_gb), TMP, *models(plan.models)]
    return filled(
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        restartPolicy="Never",
        securityContext=POD_SECURITY,
        tolerations=tolerations(plan.tolerations, gpus=plan.gpus > 0),
        containers=[_container(plan, volumes)],
        volumes=contents_of(volumes),
    )


def _container(plan: JobPlan, volumes: Sequence[Volume]) -> dict[str, Any]:
    return filled(
        name="stoker",
        image=plan.image,
        # The image's own entry point serves.
        command=["stoker", "offline"],
        args=[
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
        env=[
            {"name": "SHARD", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
            {"name": "STOKER_WORKSPACE", "value": WORKSPACE},
            HOME_VARIABLE,
        ],
        resources=filled(
            requests=resource_amounts(plan.cpu_cores, plan.memory_gb),
            limits={plan.gpu_resource: plan.gpus} if plan.gpus else None,
        ),
        securityContext=CONTAINER_SECURITY,
        volumeMounts=mounts_of(volumes),
    )


def _in_pod(model: str) -> str:
    """Return a model's path in the pod; paths are relative to its models, addresses stay."""
    return model if model.startswith("/") or read_address(model) else f"{MODELS_FOLDER}/{model}"
