"""What a deployment to Azure Kubernetes Service is in a cluster: the 31 keywords of `AksWebservice` as a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker_azure.config import DeploymentConfig
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import store_port

__all__ = ["plan_of", "planned"]

# What the service fills in where the SDK sends nothing.
_CPU_CORES: Final = 0.1
_MEMORY_GB: Final = 0.5
_MODEL: Final = {
    "replica_max_concurrent_requests": "max_concurrent_requests",
    "max_request_wait_time": "max_queue_wait_ms",
    "description": "description",
}
_SERVER: Final = {"scoring_timeout_ms": "timeout_ms", "collect_model_data": "collect"}
_SAME: Final = {
    "num_replicas": "replicas",
    "autoscale_min_replicas": "min_replicas",
    "autoscale_max_replicas": "max_replicas",
    "autoscale_refresh_seconds": "autoscale_refresh_s",
    "autoscale_target_utilization": "target_utilization",
    "cpu_cores": "cpu_cores",
    "memory_gb": "memory_gb",
    "cpu_cores_limit": "cpu_cores_limit",
    "memory_gb_limit": "memory_gb_limit",
    "gpu_cores": "gpus",
    "period_seconds": "liveness_period_s",
    "initial_delay_seconds": "liveness_initial_delay_s",
    "timeout_seconds": "liveness_timeout_s",
    "failure_threshold": "liveness_failures",
    "namespace": "namespace",
    "compute_target_name": "compute_target",
    "enable_app_insights": "pod_monitor",
    "primary_key": "primary_key",
    "secondary_key": "secondary_key",
    "tags": "tags",
    "properties": "properties",
    "description": "description",
}


def plan_of(
    configuration: DeploymentConfig, given: Mapping[str, Any], *, gpu_environment: bool = False
) -> ClusterPlan:
    """Return the plan of a deployment.

    Args:
        configuration: What `AksWebservice.deploy_configuration` was given, or `deploymentconfig.json` holds.
        given: What Azure has no keyword for, such as the image and the models, as fields of the plan; they win.
        gpu_environment: Whether the model's environment asks for GPUs, by its base image or `enableGpu`.

    Raises:
        InvalidSettings: It is no deployment to Kubernetes, or the plan contradicts itself.
    """
    return ClusterPlan(**planned(configuration, given, gpu_environment=gpu_environment))


def planned(
    configuration: DeploymentConfig, given: Mapping[str, Any], *, gpu_environment: bool = False
) -> dict[str, Any]:
    """Return the fields of that plan.

    Raises:
        InvalidSettings: It is no deployment to Kubernetes.
    """
    if configuration.kind != "aks":
        raise InvalidSettings(
            f"{configuration.source}: a deployment of type {configuration.kind} is for one machine; serve it with "
            "stoker serve --deployment-config, or make it one of type aks"
        )
    values = configuration.values
    fields = {field: values[keyword] for keyword, field in _SAME.items() if keyword in values}
    fields.setdefault("cpu_cores", _CPU_CORES)
    fields.setdefault("memory_gb", _MEMORY_GB)
    if gpu_environment and "gpu_cores" not in values:
        fields["gpus"] = 1
    for name in ("cpu_cores", "memory_gb"):
        limit = fields.get(f"{name}_limit")
        if name not in values and limit is not None:
            fields[name] = min(fields[name], limit)
    server = {field: values[keyword] for keyword, field in _SERVER.items() if keyword in values}
    server |= {"auth": configuration.takes_keys, "token_auth": configuration.takes_tokens}
    model = {field: values[keyword] for keyword, field in _MODEL.items() if keyword in values}
    plan = {**fields, **given}
    # Azure's own words for it: an init container that downloads.
    plan["fetched_once"] = values.get("blobfuse_enabled") is False
    plan["server"] = {**server, **given.get("server", {})}
    plan["model_defaults"] = {**model, **given.get("model_defaults", {})}
    plan["notes"] = (*given.get("notes", ()), *_notes(values, plan))
    if values.get("autoscale_enabled") and plan.get("autoscaler") is None:
        plan["autoscaler"] = "stoker"
    return plan


def _notes(values: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    if "num_replicas" not in values and plan.get("autoscaler") is None and "replicas" not in plan:
        yield "one pod: Azure would scale from 1 to 10 of them where num_replicas is not given, as --autoscaler does"
    if values.get("success_threshold", 1) != 1:
        yield (
            f"success_threshold {values['success_threshold']} is 1: Kubernetes allows nothing else for liveness"
        )
    if "max_request_wait_time" in values and "replica_max_concurrent_requests" not in values:
        yield "max_request_wait_time has no effect without replica_max_concurrent_requests"
    if "blobfuse_enabled" in values and store_port(plan.get("models", "image")) is None:
        yield "blobfuse_enabled has no effect: --models says how models reach the pods, and they are in no store"
    elif values.get("blobfuse_enabled"):
        yield "blobfuse_enabled mounts nothing: pods fetch their models from the store"
    if plan.get("pod_monitor") and "enable_app_insights" in values:
        yield "enable_app_insights is a PodMonitor, which Prometheus' operator brings; without it: --no-pod-monitor"
