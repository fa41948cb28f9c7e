"""Deployments to Azure Kubernetes Service in a cluster: the 31 keywords of `AksWebservice` as a plan.

Files of a service go to its target's address, for clusters have no store of ours (decision 61).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.models.frameworks import SERVED_ALONE
from stoker.models.labels import LABELS_FILE
from stoker.models.model_links import copy_model
from stoker.models.registered import Registered
from stoker.models.remote_stores import list_sizes, shown_address
from stoker.models.remote_writing import send
from stoker.models.repository import Repository
from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder
from stoker_azure.config import DeploymentConfig
from stoker_azure.sdk.bindings import Binding, vm_size_of
from stoker_azure.sdk.environment import DEFAULT_GPU_IMAGE
from stoker_azure.sdk.services.records import Plan, ServiceRecord, Services
from stoker_base.trees import files_below
from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.machines import INSTANCE_TYPE, has_machines
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import MODELS_FOLDER

# Azure fills these in where the SDK sends nothing.
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


def make_plan(
    configuration: DeploymentConfig, given: Mapping[str, Any], *, gpu_environment: bool = False
) -> ClusterPlan:
    """Make the plan of a deployment.

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
    """Return the fields of the plan of a deployment."""
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
    plan["server"] = {**server, **given.get("server", {})}
    if values.get("blobfuse_enabled") is False:
        # Azure's own words for files that are fetched once.
        plan["server"].pop("poll_s", None)
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
    if values.get("blobfuse_enabled"):
        yield "blobfuse_enabled mounts nothing: --models says how models reach the pods"
    if plan.get("pod_monitor") and "enable_app_insights" in values:
        yield "enable_app_insights is a PodMonitor, which Prometheus' operator brings; without it: --no-pod-monitor"


def model_alone(plan: Plan, models: Sequence[Registered]) -> Registered:
    """Return the model that is served without a script.

    Raises:
        InvalidSettings: There are others, or it cannot be.
    """
    if len(models) == 1 and models[0].framework in SERVED_ALONE:
        return models[0]
    shown = ", ".join(f"{model.name}:{model.version} ({model.framework})" for model in models)
    raise InvalidSettings(
        f"{plan.name}: without an inference_config exactly one ONNX model, SavedModel, model of MLflow or of "
        f"scikit-learn, or entry script can be deployed, not {shown or 'none'}; pickles are registered with "
        "model_framework=Model.Framework.SCIKITLEARN"
    )


_REGISTERED: Final = "azureml-models"
_GRAPH: Final = "model.onnx"


def write_pod_files(
    folder: Path, plan: Plan, models: Sequence[Registered], inside: PurePosixPath
) -> dict[str, Any]:
    """Copy the files of a service, and return the entry of its model in the deployment file of the pods.

    Args:
        folder: Target of the copies; existing content is removed.
        inside: Path of the folder in the pods.

    Raises:
        InvalidSettings: There is no script, and no model that can be served without one.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for model in models:
        place = folder / _REGISTERED / model.name / str(model.version)
        if plan.inference is None:
            shutil.copytree(model.files_dir, place)
        else:
            copy_model(model, place)
    if plan.inference is None:
        model = model_alone(plan, models)
        path = inside / _REGISTERED / model.name / str(model.version) / model.entry
        return {"path": str(path), "name": plan.name}
    script = Path(plan.inference["entryScript"])
    source = Path(plan.inference.get("sourceDirectory") or script.parent)
    if "sourceDirectory" in plan.inference:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    else:
        private_folder(folder)
        shutil.copy(script, folder)
    served: dict[str, Any] = {
        "path": str(inside / script.relative_to(source).as_posix()),
        "name": plan.name,
    }
    if models:
        # As AZUREML_MODEL_DIR is on Azure: the one model, or the folder of all.
        root = inside / _REGISTERED
        served["model_dir"] = str(
            root / models[0].name / str(models[0].version) if len(models) == 1 else root
        )
    if variables := (plan.inference.get("environment") or {}).get("environmentVariables"):
        served["environment_variables"] = dict(variables)
    return served


def write_versioned_files(
    folder: Path, plan: Plan, models: Sequence[Registered], inside: PurePosixPath
) -> dict[str, Any] | None:
    """Copy a model that is served without a script so that running pods load it as a new version.

    That is a folder of version folders, with a label that names the served version; see `write_pod_files`.

    Returns:
        The model, the same for all of its versions; None for services that cannot have their files so.
    """
    if plan.inference is not None or len(models) != 1 or models[0].framework not in ("onnx", "tensorflow"):
        return None
    (model,) = models
    shutil.rmtree(folder, ignore_errors=True)
    base = private_folder(folder / model.name)
    version, entry = base / str(model.version), model.files_dir / model.entry
    if entry.is_dir():
        shutil.copytree(entry, version)
    else:
        shutil.copytree(model.files_dir, version)
        (version / model.entry).rename(version / _GRAPH)
    (base / LABELS_FILE).write_text(json.dumps({"default": model.version}) + "\n", encoding="utf-8")
    return {"path": str(inside / model.name), "name": plan.name}


_FILES: Final = "files"
_POLL_S: Final = 2.0
_MONITOR: Final = ("monitoring.coreos.com/v1", "PodMonitor")
_NOT_MONITORED: Final = (
    "enable_app_insights has no effect: the cluster knows no PodMonitor; each pod has its metrics at /metrics"
)


def deploy(
    workspace: Workspace,
    services: Services,
    plan: Plan,
    binding: Binding,
    old: ServiceRecord | None,
    *,
    overwrite: bool,
    report: Callable[[str], object],
) -> ServiceRecord:
    """Apply a service to its cluster, and return its record.

    The files are copied in the workspace as the pods need them, and a line says where.
    """
    if old is not None and old.versions is not None:
        raise InvalidSettings(f"{plan.name} is an endpoint with versions; delete() it first")
    cluster = Cluster.connect(binding.context, warn=report)
    planned = prepare(workspace, cluster, plan, binding, report)
    namespace = planned.namespace or cluster.namespace
    found = ClusterService(cluster, namespace, planned.instance).status()
    if found.state not in ("Deleted", "Failed") and not overwrite:
        raise InvalidSettings(
            f"there is a service {plan.name} already, in namespace {namespace} of {binding.context}; deploy it with "
            "overwrite=True, update() it, or delete() it first"
        )
    apply_reporting(cluster, planned, report)
    made = record(plan, planned, {"context": binding.context, "namespace": namespace}, old)
    services.write(made)
    return made


def apply_reporting(cluster: Cluster, planned: ClusterPlan, report: Callable[[str], object]) -> None:
    """Apply a plan, and report what has changed."""
    for change in apply(cluster, planned):
        if change.verb != "unchanged":
            report(f"  {change}")


def prepare(
    workspace: Workspace,
    cluster: Cluster,
    plan: Plan,
    binding: Binding,
    report: Callable[[str], object],
    version: Mapping[str, Any] | None = None,
) -> ClusterPlan:
    """Copy the files of a service, and return its plan: Azure's keywords over the fields of its target.

    Args:
        version: Fields of the plan for one version of an endpoint, `version_name` among them.
    """
    configuration = DeploymentConfig.from_keywords(plan.kind, **plan.keywords)
    among = version or {}
    instance = f"{plan.name}-{among['version_name']}" if among else plan.name
    files = _write_files(workspace, plan, instance, binding, is_version=bool(among))
    served_plan = {"name": plan.name, "serves": (files.served,), "compute_target": plan.compute_name}
    given = {**binding.planned(), **served_plan, **among}
    if files.has_versions:
        given["server"] = {"poll_s": _POLL_S}
    if "namespace" in configuration.values:
        del given["namespace"]
    size = vm_size_of(workspace, plan.compute_name)
    if size is not None and has_machines(cluster, size):
        given["node_selector"] = {INSTANCE_TYPE: size, **(given.get("node_selector") or {})}
    if configuration.values.get("enable_app_insights") and not cluster.knows(*_MONITOR):
        given |= {"pod_monitor": False, "notes": (_NOT_MONITORED,)}
    planned = make_plan(configuration, given, gpu_environment=_wants_gpus(plan))
    if files.address:
        # Once all else is found good.
        _send(files)
    for line in _lines(planned, binding, files):
        report(line)
    return planned


class _Files(Struct, frozen=True):
    """The files of a service.

    Attributes:
        served: The model, as the deployment file of the pods has it.
        address: Where the files are sent; empty if somebody brings them to the pods.
        sent: The files to send, by their names below the address.
        has_versions: Whether pods load new versions of the model without a restart.
    """

    folder: Path
    served: dict[str, Any]
    address: str = ""
    sent: Mapping[str, Path] = msgspec.field(default_factory=dict)
    has_versions: bool = False


def _write_files(
    workspace: Workspace, plan: Plan, instance: str, binding: Binding, *, is_version: bool
) -> _Files:
    """Copy the files of a service as its pods need them."""
    folder = private_folder(private_folder(workspace.services_dir / plan.name) / _FILES)
    if is_version:
        folder /= instance
    models = [Repository(workspace.models_dir).resolve(reference) for reference in plan.models]
    if binding.address is None:
        return _Files(folder, write_pod_files(folder, plan, models, PurePosixPath(MODELS_FOLDER) / instance))
    address = f"{binding.address}/{instance}"
    versioned = write_versioned_files(folder, plan, models, PurePosixPath())
    served = versioned or write_pod_files(folder, plan, models, PurePosixPath())
    names = {path.relative_to(folder).as_posix(): path for path in sorted(files_below(folder))}
    if versioned is None:
        # Other files are another address, and a rollout; a script is fetched with its folder, without models.
        address = f"{address}/{_digest_of(names)}"
        names = {_name_at_address(name): path for name, path in names.items()}
        served["path"] = _name_at_address(str(served["path"]))
    for setting in ("path", "model_dir"):
        if setting in served:
            served[setting] = f"{address}/{served[setting]}"
    return _Files(folder, served, address, names, has_versions=versioned is not None)


def _digest_of(files: Mapping[str, Path]) -> str:
    found = hashlib.sha256()
    for name, path in files.items():
        with path.open("rb") as content:
            found.update(f"{name}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def _name_at_address(name: str) -> str:
    return name if name.startswith(f"{_REGISTERED}/") else f"script/{name}"


def _send(files: _Files) -> None:
    """Send files to their address, without those that are there, by their sizes. Labels, which change, come last."""
    there = list_sizes(files.address)
    labels = {name: path for name, path in files.sent.items() if name.endswith(f"/{LABELS_FILE}")}
    missing = {name: path for name, path in files.sent.items() if there.get(name) != path.stat().st_size}
    send({**{name: path for name, path in missing.items() if name not in labels}, **labels}, files.address)


def _wants_gpus(plan: Plan) -> bool:
    docker: Mapping[str, Any] = ((plan.inference or {}).get("environment") or {}).get("docker") or {}
    return docker.get("baseImage") == DEFAULT_GPU_IMAGE or bool(docker.get("enableGpu"))


def _lines(planned: ClusterPlan, binding: Binding, files: _Files) -> Iterator[str]:
    yield f"{planned.instance}: a service of the cluster {binding.context}, whose pods run {planned.image}"
    if files.address:
        yield f"  files    {files.folder} is in {shown_address(files.address)}"
    else:
        place = "the image" if planned.models == "image" else planned.models
        yield f"  files    {files.folder} is to be {MODELS_FOLDER}/{planned.instance} of {place}"
    for note in planned.notes:
        yield f"  azure    {note}"


def record(
    plan: Plan, planned: ClusterPlan, place: Mapping[str, str], old: ServiceRecord | None
) -> ServiceRecord:
    """Make the record of a service that was applied."""
    configuration = DeploymentConfig.from_keywords(plan.kind, **plan.keywords)
    return plan.record(
        configuration.values,
        old,
        revision=0,
        pid=0,
        host="",
        port=0,
        auth=configuration.takes_keys,
        token_auth=configuration.takes_tokens,
        replicas=planned.fixed_replicas or planned.scaling_range[0],
        made_keys=True,
        cluster=place,
    )
