"""From the SDK's objects to what is submitted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from stoker_azure.exceptions import ExperimentExecutionException, NotOffered, UserErrorException
from stoker_azure.sdk.base import BaseWorkspace, raised_as
from stoker_azure.sdk.compute import ComputeTarget
from stoker_azure.sdk.dataset import DatasetConsumption, FileDataset, OutputFileDatasetConfig
from stoker_azure.sdk.datastore import DataPath, DataReference, Datastore
from stoker_azure.sdk.environment import DEFAULT_CPU_IMAGE, Environment
from stoker_azure.sdk.run_configuration import LONGEST_S, RunConfiguration, ScriptRunConfig
from stoker_runs.launch.azure_files import COMMUNICATORS, FRAMEWORKS, with_spark_options
from stoker_runs.launch.outputs import folder_of_script
from stoker_runs.launch.submission import Request
from stoker_runs.records.record import TARGET_VARIABLE, Definition, Output
from stoker_runs.targets.containers import optional_container
from stoker_runs.targets.definitions import LOCAL, SPARK, SPARK_MODES, Target, find_target, list_targets

MODE_VARIABLE: Final = "STOKER_RUN_ENVIRONMENT"
"""Names the variable that says how packages are installed: one of `MODES`."""
MODES: Final = ("exact", "relaxed", "here")


_DESTINATION: Final = "dataset/{run-id}/{output-name}"
"""Azure's default destination of an output."""
_INSTEAD: Final[Mapping[str, str]] = {
    "Databricks": "an HDInsightCompute with the address of any Spark cluster's head node takes them",
    "DataLakeAnalytics": "an HDInsightCompute with the address of any Spark cluster's head node takes them",
    "Batch": "submit them one by one to an AmlCompute, whose slots they share, or as a sweep",
}
"""The replacement for services that take steps of pipelines alone."""


@contextmanager
def make_request(
    workspace: BaseWorkspace,
    experiment: str,
    config: ScriptRunConfig,
    tags: Mapping[str, str],
    parent: str = "",
) -> Iterator[Request]:
    """Make the request of a configuration; its environment file exists during the context.

    Raises:
        UserErrorException: The configuration is incomplete, or an argument is not allowed.
        NotOffered: The configuration needs what only Azure has.
    """
    script = _checked_script(config)
    run_config = config.run_config
    data = _Data(workspace)
    arguments = [data.argument(one) for one in config.arguments]
    for one in (*getattr(config, "inputs", ()), *run_config.data_references.values()):
        data.argument(one)
    if isinstance(config.resume_from, DataPath) and isinstance(config.resume_from.datastore, Datastore):
        place = config.resume_from.datastore.place(config.resume_from.path_on_datastore)
        arguments += ["--resume-from", data.read("resume_from", place)]
    target, variables = _target(workspace, config)
    variables |= {**run_config.environment.environment_variables, **run_config.environment_variables}
    container = _container(workspace, target, run_config)
    found = find_target(workspace.local.targets_dir, target)
    variables = _with_spark(run_config, found, variables)
    definition = Definition(
        script.replace(os.sep, "/"),
        tuple(arguments),
        target,
        max_duration_s=run_config.max_run_duration_seconds or LONGEST_S,
        variables={str(name): str(value) for name, value in variables.items()},
        inputs=data.inputs,
        outputs=data.outputs,
        container=container,
        framework=_framework(run_config, found),
        gpus=_gpus(found) if getattr(config, "use_gpu", False) else None,
        **_distribution_fields(config.distributed_job_config),
    )
    with tempfile.TemporaryDirectory(prefix="stoker-submit-") as folder:
        yield Request(
            definition,
            Path(config.source_directory),
            experiment,
            tags=dict(tags),
            parent=parent,
            dockerfile=_dockerfile(run_config.environment, Path(folder))
            if container or found.has_containers
            else None,
            **_environment(run_config, found, Path(folder)),
        )


def _checked_script(config: ScriptRunConfig) -> str:
    """Return the script; refuse commands, words that Azure does not know, and data that no script would get."""
    run_config = config.run_config
    if config.command is not None or run_config.command is not None:
        raise NotOffered("a command in the place of a script is not offered: write it into a script")
    for setting, word, known in (
        ("framework", run_config.framework, FRAMEWORKS),
        ("communicator", run_config.communicator, (*COMMUNICATORS, "nccl", "gloo")),
    ):
        if str(word).lower() not in known:
            near = get_close_matches(str(word).lower(), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(filter(None, known))}"
            raise UserErrorException(f"{setting} is {word!r}; {hint}")
    if run_config.data or run_config.output_data:
        raise NotOffered(
            "data and output_data of a RunConfiguration are not offered: put the data set among the arguments, as by "
            "dataset.as_mount()"
        )
    if not config.script:
        raise UserErrorException("the configuration names no script")
    return config.script


def _warn_without_pyspark(environment: Environment, packages: Mapping[str, Any]) -> None:
    """Print a line if PySpark is visibly missing."""
    conda = environment.python.conda_dependencies
    if packages.get("python"):
        return
    if "environment" in packages and conda is not None:
        there = any(
            name.lower().startswith("pyspark") for name in (*conda.conda_packages, *conda.pip_packages)
        )
        where = "the packages of the environment: conda_dependencies.add_pip_package('pyspark') adds it"
    else:
        there = find_spec("pyspark") is not None
        where = "the packages of this Python: pip install pyspark"
    if not there:
        print(f"the framework is PySpark, which Python runs here, and pyspark is not among {where}")


class _Data:
    """The data that a script reads and writes, by its arguments.

    Attributes:
        inputs: Paths that the script reads, by name.
        outputs: Folders of data stores that it writes to, by name.
    """

    def __init__(self, workspace: BaseWorkspace) -> None:
        self._workspace = workspace
        self.inputs: dict[str, str] = {}
        self.outputs: dict[str, Output] = {}

    def argument(self, value: Any) -> str:
        """Return an argument as text; for data, a reference that becomes its path on the compute target."""
        if isinstance(value, FileDataset):
            raise UserErrorException(
                f"{value!r} is a data set: say how the script is to have it, with as_mount() or as_download()"
            )
        if isinstance(value, DatasetConsumption):
            return self.read(value.name, value.dataset.folder())
        if isinstance(value, OutputFileDatasetConfig):
            store, path = value.destination or (Datastore(self._workspace), _DESTINATION)
            return self._write(value.name, store.name, path, value.mode, value.source, value.overwrite)
        if isinstance(value, DataReference):
            # Scripts also write to what they mount.
            if value.mode == "upload" or (
                value.mode == "mount" and not value.datastore.has(value.path_on_datastore)
            ):
                return self._write(
                    value.data_reference_name,
                    value.datastore.name,
                    value.path_on_datastore,
                    value.mode,
                    value.path_on_compute,
                    value.overwrite,
                )
            if value.mode == "mount" and value.datastore.is_remote:
                print(
                    f"{value!r}: the script gets a copy of the files, and what it writes there does not get into the "
                    "store; as_upload() has it write to the store"
                )
            return self.read(value.data_reference_name, value.to_path())
        if isinstance(value, DataPath) and isinstance(value.datastore, Datastore):
            store = value.datastore
            return self.read(value.name or store.name, store.place(value.path_on_datastore))
        return str(value)

    def read(self, name: str, place: Path) -> str:
        """Make a path an input, and return a reference that becomes its path on the compute target."""
        free = name
        number = 1
        while self.inputs.get(free, str(place)) != str(place):
            # Two paths of one store have the name of the store.
            number += 1
            free = f"{name}_{number}"
        self.inputs[free] = str(place)
        return f"$AZUREML_DATAREFERENCE_{free}"

    def _write(self, name: str, store: str, path: str, mode: str, folder: str | None, overwrite: bool) -> str:
        """Make a folder of a store an output, and return a reference that becomes the path to write to.

        Args:
            folder: The folder that the script writes to by itself.
        """
        with raised_as(UserErrorException):
            place = "" if folder is None else folder_of_script(folder)
        free, number = name, 1
        while free in self.outputs:
            number += 1
            free = f"{name}_{number}"
        if mode == "upload":
            place = place or f"outputs/{free}"
        self.outputs[free] = Output(store, path, place, overwrite or mode == "mount")
        return f"$AZUREML_DATAREFERENCE_{free}"


def _target(workspace: BaseWorkspace, config: ScriptRunConfig) -> tuple[str, dict[str, str]]:
    """Return the name of the target and variables for the run; clusters that this machine stands for share it."""
    name = config.run_config.target
    if name == LOCAL or name in list_targets(workspace.local.targets_dir):
        return name, {}
    if name.lower() == "amlcompute" and config.run_config.amlcompute.vm_size:
        return LOCAL, {TARGET_VARIABLE: config.run_config.amlcompute.name or name}
    kind = ComputeTarget(workspace, name).type
    instead = _INSTEAD.get(kind, "an AmlCompute, for which this machine stands, takes them")
    raise ExperimentExecutionException(
        f"{name} is a compute target of type {kind}, to which no scripts are sent from here; {instead}. There are: "
        f"{', '.join(list_targets(workspace.local.targets_dir))}"
    )


def _distribution_fields(distribution: Any) -> dict[str, Any]:
    if distribution is None:
        return {}
    return {
        "nodes": int(distribution.node_count),
        "processes_per_node": int(distribution.process_count_per_node),
        "communicator": distribution.communicator,
        "parameter_servers": int(getattr(distribution, "parameter_server_count", 0)),
    }


def _gpus(target: Target) -> int | None:
    """Return the number of GPUs for a run that uses them; None means one if the target has any."""
    capacity = target.capacity
    if capacity is None:
        return 1
    if not capacity.gpus:
        print(f"use_gpu is True, and {target.name} has no GPU: the script runs on its processors")
    return None


def _container(workspace: BaseWorkspace, target: str, run_config: RunConfiguration) -> dict[str, Any]:
    """Return the image and the settings of a container; empty if none is requested or possible."""
    docker = run_config.environment.docker
    found = find_target(workspace.local.targets_dir, target)
    # Nobody has asked for the default image, which is Azure's.
    image = "" if docker.base_dockerfile or docker.base_image == DEFAULT_CPU_IMAGE else docker.base_image
    wanted = docker.enabled or run_config.docker.use_docker or image or docker.base_dockerfile
    if not found.has_containers and not (
        wanted
        and optional_container(
            found, workspace.local, print, image=image or "", dockerfile=bool(docker.base_dockerfile)
        )
    ):
        return {}
    container = {
        "optional": not found.has_containers,
        "image": image,
        "shm_size": docker.shm_size or run_config.docker.shm_size,
        "arguments": [*docker.arguments, *run_config.docker.arguments],
    }
    return {name: value for name, value in container.items() if value}


def _dockerfile(environment: Environment, folder: Path) -> Path | None:
    """Return the Dockerfile of an environment; write it if the environment has its text."""
    dockerfile = environment.docker.base_dockerfile
    if not dockerfile:
        return None
    if "\n" not in dockerfile and Path(dockerfile).is_file():
        return Path(dockerfile)
    file = folder / "Dockerfile"
    file.write_text(dockerfile, encoding="utf-8")
    return file


def _framework(run_config: RunConfiguration, target: Target) -> str:
    """Return what runs the script on a Spark cluster; empty elsewhere, where Python does."""
    if target.type != SPARK:
        return ""
    return "pyspark" if run_config.framework.lower() == "pyspark" else "python"


def _with_spark(run_config: RunConfiguration, target: Target, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a run with the properties of Spark that it sets.

    Raises:
        UserErrorException: Spark does not run the script, or the target has another deploy mode.
    """
    mode, properties = run_config.hdi.yarn_deploy_mode, run_config.spark.configuration
    has = target.settings.get("deploy_mode", SPARK_MODES[0])
    if mode is not None and target.type == SPARK and mode != has:
        raise UserErrorException(
            f"yarn_deploy_mode is {mode!r}, and deploy_mode of the compute target {target.name} is {has!r}: change "
            f"deploy_mode in {target.name}.yaml, or leave yarn_deploy_mode out"
        )
    if properties and run_config.framework.lower() != "pyspark":
        raise UserErrorException("spark.configuration is for the framework PySpark: set run_config.framework")
    return with_spark_options(properties, variables)


def _environment(run_config: RunConfiguration, target: Target, folder: Path) -> dict[str, Any]:
    packages = _packages(run_config.environment, folder)
    if run_config.framework.lower() == "pyspark" and target.type != SPARK:
        _warn_without_pyspark(run_config.environment, packages)
    return packages


def _packages(environment: Environment, folder: Path) -> dict[str, Any]:
    """Return how to install the packages: `exact` unless the variable says otherwise."""
    mode = os.environ.get(MODE_VARIABLE, "exact")
    if mode not in MODES:
        raise UserErrorException(f"{MODE_VARIABLE} is {mode!r}, and can be {', '.join(MODES)}")
    python = environment.python
    if python.user_managed_dependencies:
        return {"python": "" if python.interpreter_path == "python" else python.interpreter_path}
    conda = python.conda_dependencies
    if mode == "here" or conda is None or not _asks_for_packages(conda.as_dict()):
        return {}
    file = folder / "environment.yml"
    file.write_text(yaml.safe_dump(conda.as_dict()), encoding="utf-8")
    return (
        {"environment": "relaxed", "environment_file": file}
        if mode == "relaxed"
        else {"environment": str(file)}
    )


def _asks_for_packages(content: Mapping[str, Any]) -> bool:
    """Whether a conda file lists more than Python and Azure's packages."""
    dependencies: Sequence[Any] = content.get("dependencies", ())
    names = [
        name for one in dependencies for name in (one.get("pip", ()) if isinstance(one, dict) else (one,))
    ]
    return any(not str(name).startswith(("python=", "pip", "azureml-")) for name in names)
