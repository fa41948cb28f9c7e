"""From what deployment code asks for to a service in the cluster that its compute target stands for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stoker.azure_config import DeploymentConfig
from stoker.azure_sdk.bindings import Binding, vm_size_of
from stoker.azure_sdk.environments.environment import DEFAULT_GPU_IMAGE
from stoker.azure_sdk.services.plan import Plan
from stoker.azure_sdk.services.records import ServiceRecord, Services, now
from stoker.cluster.access import Cluster
from stoker.cluster.applying import apply
from stoker.cluster.azure import plan_of
from stoker.cluster.checking import INSTANCE_TYPE, has_machines
from stoker.cluster.plan import ClusterPlan
from stoker.cluster.service import ClusterService
from stoker.cluster.values import MODELS_FOLDER
from stoker.errors import InvalidSettings
from stoker.models.frameworks import SERVED_ALONE
from stoker.models.registered import Registered
from stoker.models.repository import Repository
from stoker.system.durable import private_folder
from stoker.workspace import Workspace

__all__ = ["deploy"]

_FILES: Final = "files"
_REGISTERED: Final = "azureml-models"
_MONITOR: Final = ("monitoring.coreos.com/v1", "PodMonitor")
_NOT_MONITORED: Final = (
    "enable_app_insights has no effect: the cluster knows no PodMonitor; each pod has its metrics at /metrics"
)
_NOT_KEPT: Final = {"primary_key", "secondary_key", "tags", "properties"}


def deploy(
    workspace: Workspace,
    services: Services,
    plan: Plan,
    binding: Binding,
    old: ServiceRecord | None,
    *,
    overwrite: bool,
    say: Callable[[str], object],
) -> ServiceRecord:
    """Apply a service to its cluster, and keep what is known of it.

    Its files are laid out in the workspace as the pods are to have them, and a line says where that is.

    Args:
        workspace: Where the service is kept.
        services: The services of the workspace.
        plan: What it is to be.
        binding: Its cluster.
        old: What is known of it, if it was deployed before.
        overwrite: Replace one that is there.
        say: Takes lines for the user.

    Raises:
        OperatorError: A setting or model cannot be used, or the cluster refuses.
    """
    cluster = Cluster.connect(binding.context, warn=say)
    configuration = DeploymentConfig.from_keywords(plan.kind, **plan.keywords)
    folder = private_folder(workspace.services_dir / plan.name) / _FILES
    models = [Repository(workspace.models_dir).resolve(reference) for reference in plan.models]
    served = _lay_out(folder, plan, models)
    planned = _planned(workspace, cluster, configuration, plan, binding, served)
    namespace = planned.namespace or cluster.namespace
    found = ClusterService(cluster, namespace, planned.instance).standing()
    if found.state not in ("Deleted", "Failed") and not overwrite:
        raise InvalidSettings(
            f"there is a service {plan.name} already, in namespace {namespace} of {binding.context}; deploy it with "
            "overwrite=True, update() it, or delete() it first"
        )
    for line in _lines(plan, planned, binding, folder):
        say(line)
    for change in apply(cluster, planned):
        if change.verb != "unchanged":
            say(f"  {change}")
    record = _record(plan, planned, configuration, {"context": binding.context, "namespace": namespace}, old)
    services.write(record)
    return record


def _planned(
    workspace: Workspace,
    cluster: Cluster,
    configuration: DeploymentConfig,
    plan: Plan,
    binding: Binding,
    served: Mapping[str, Any],
) -> ClusterPlan:
    """The plan of the service: Azure's keywords over what its compute target says of all services."""
    said = {"name": plan.name, "serves": (served,), "compute_target": plan.compute_name}
    given = {**binding.planned(), **said}
    if "namespace" in configuration.values:
        del given["namespace"]
    size = vm_size_of(workspace, plan.compute_name)
    if size is not None and has_machines(cluster, size):
        given["node_selector"] = {INSTANCE_TYPE: size, **(given.get("node_selector") or {})}
    if configuration.values.get("enable_app_insights") and not cluster.knows(*_MONITOR):
        given |= {"pod_monitor": False, "notes": (_NOT_MONITORED,)}
    return plan_of(configuration, given, gpu_environment=_wants_gpus(plan))


def _lay_out(folder: Path, plan: Plan, models: list[Registered]) -> dict[str, Any]:
    """Copy the files of the service, and return its model as the deployment file of the pods has it."""
    shutil.rmtree(folder, ignore_errors=True)
    inside = PurePosixPath(MODELS_FOLDER) / plan.name
    for model in models:
        shutil.copytree(model.files_dir, folder / _REGISTERED / model.name / str(model.version))
    if plan.inference is None:
        if len(models) != 1 or models[0].framework not in SERVED_ALONE:
            raise InvalidSettings(
                f"{plan.name}: without an inference_config exactly one ONNX model, SavedModel or entry script can be "
                "deployed"
            )
        (model,) = models
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


def _wants_gpus(plan: Plan) -> bool:
    docker: Mapping[str, Any] = ((plan.inference or {}).get("environment") or {}).get("docker") or {}
    return docker.get("baseImage") == DEFAULT_GPU_IMAGE or bool(docker.get("enableGpu"))


def _lines(plan: Plan, planned: ClusterPlan, binding: Binding, folder: Path) -> Iterator[str]:
    yield f"{plan.name}: a service of the cluster {binding.context}, whose pods run {planned.image}"
    place = "the image" if planned.models == "image" else planned.models
    yield f"  files    {folder} is to be {MODELS_FOLDER}/{plan.name} of {place}"
    for note in planned.notes:
        yield f"  azure    {note}"


def _record(
    plan: Plan,
    planned: ClusterPlan,
    configuration: DeploymentConfig,
    place: Mapping[str, str],
    old: ServiceRecord | None,
) -> ServiceRecord:
    values, time = configuration.values, now()
    return ServiceRecord(
        name=plan.name,
        kind=plan.kind,
        compute_name=plan.compute_name,
        keywords={name: value for name, value in values.items() if name not in _NOT_KEPT},
        tags=values.get("tags", {}),
        properties=values.get("properties", {}),
        models=list(plan.models),
        inference=plan.inference,
        revision=0,
        pid=0,
        host="",
        port=0,
        auth=configuration.takes_keys,
        token_auth=configuration.takes_tokens,
        replicas=planned.fixed_replicas or planned.scaling_range[0],
        made_keys=True,
        created_at=old.created_at if old is not None else time,
        updated_at=time,
        cluster=place,
    )
