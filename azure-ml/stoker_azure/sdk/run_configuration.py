"""`azureml.core.runconfig`: how a script is to run."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.base import BaseWorkspace, Printable
from stoker_azure.sdk.environment import DEFAULT_CPU_IMAGE, DEFAULT_GPU_IMAGE, Environment
from stoker_azure.sdk.unoffered import KnownAttributes, with_unoffered_names
from stoker_runs.tuning.definition import SweepDefinition

__all__ = [
    "DEFAULT_CPU_IMAGE",
    "DEFAULT_GPU_IMAGE",
    "LONGEST_S",
    "AmlComputeSection",
    "DockerConfiguration",
    "HdiConfiguration",
    "MpiConfiguration",
    "PyTorchConfiguration",
    "RunConfiguration",
    "ScriptRunConfig",
    "SparkConfiguration",
    "SweepConfig",
    "TensorflowConfiguration",
]

LONGEST_S: Final = 2_592_000
"""Largest duration of a run by default: 30 days."""


class MpiConfiguration(KnownAttributes):
    """Processes that MPI would start; here they find each other by its variables.

    Args:
        process_count_per_node: Processes of each machine.
    """

    communicator = "mpi"

    def __init__(self, process_count_per_node: int = 1, node_count: int = 1) -> None:
        self.process_count_per_node = process_count_per_node
        self.node_count = node_count
        self._is_complete = True


class TensorflowConfiguration(KnownAttributes):
    """Workers that find each other by `TF_CONFIG`.

    Args:
        parameter_server_count: Parameter servers; there can be none.
    """

    communicator = "tensorflow"
    process_count_per_node = 1

    def __init__(self, worker_count: int = 1, parameter_server_count: int = 0) -> None:
        self.worker_count = worker_count
        self.parameter_server_count = parameter_server_count
        self._is_complete = True

    @property
    def node_count(self) -> int:
        """Workers count as machines, and so do parameter servers."""
        return int(self.worker_count) + int(self.parameter_server_count)


class PyTorchConfiguration(KnownAttributes):
    """Processes that find each other by `RANK` and `MASTER_ADDR`.

    Args:
        communication_backend: Not used: the script names it, or PyTorch takes NCCL with GPUs and gloo without.
        process_count: How many in all; by default one of each machine.

    Raises:
        UserErrorException: The machines would have different numbers of processes.
    """

    communicator = "pytorch"

    def __init__(
        self, communication_backend: str = "Nccl", process_count: int | None = None, node_count: int = 1
    ) -> None:
        if process_count is not None and process_count % node_count:
            raise UserErrorException(
                f"process_count is {process_count}, and {node_count} nodes have equal numbers of processes: take a "
                f"multiple of {node_count}"
            )
        self.communication_backend = communication_backend
        self.process_count = process_count
        self.node_count = node_count
        self._is_complete = True

    @property
    def process_count_per_node(self) -> int:
        """Processes of each machine."""
        return max(1, (self.process_count or self.node_count) // self.node_count)


class DockerConfiguration(KnownAttributes):
    """Whether to run the script in a container.

    Args:
        arguments: Further arguments of `docker run`.
    """

    def __init__(
        self,
        use_docker: bool = False,
        shared_volumes: bool = True,
        arguments: Sequence[str] | None = None,
        shm_size: str | None = None,
    ) -> None:
        self.use_docker = use_docker
        self.shared_volumes = shared_volumes
        self.arguments = list(arguments or [])
        self.shm_size = shm_size
        self._is_complete = True


class AmlComputeSection(KnownAttributes):
    """A cluster for one run; this machine's slots stand for it."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"cluster_max_node_count", "location"})

    def __init__(self) -> None:
        self.vm_size: str | None = None
        self.vm_priority: str | None = None
        self.name: str | None = None
        self.retain_cluster = False
        self._cluster_max_node_count = 1
        self._is_complete = True


AmlComputeConfiguration = AmlComputeSection


class SparkConfiguration(KnownAttributes):
    """Properties of Spark, by their names, for the framework PySpark."""

    def __init__(self) -> None:
        self.configuration: dict[str, Any] = {}
        self._is_complete = True


class HdiConfiguration(KnownAttributes):
    """Where the driver of a script runs on a Spark cluster: `client` or `cluster`; None for the target's setting."""

    def __init__(self) -> None:
        self.yarn_deploy_mode: str | None = None
        self._is_complete = True


@with_unoffered_names
class RunConfiguration(KnownAttributes):
    """How to run a script. Its 21 attributes are those of Azure's class, by whose names users' code sets them.

    Attributes:
        framework: `Python`, or another one of Azure's.
        communicator: How several processes find each other: `None`, `OpenMpi`, `ParameterServer`, `Nccl`, `Gloo`.
        mpi: Processes of each machine, for MPI.
        data_references: Paths in data stores that the script reads or writes, by name.
        command: A command line instead of a script; not offered.
    """

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {
            *("auto_prepare_environment", "prepare_environment", "gpu_support", "history"),
            *("paralleltask", "datacaches", "source_directory_data_store", "kubernetescompute", "services"),
            *("credential_passthrough", "priority", "auto_cluster_compute_specification"),
        }
    )

    def __init__(
        self,
        script: str | None = None,
        arguments: Sequence[Any] | None = None,
        framework: str | None = None,
        communicator: str | None = None,
        conda_dependencies: Any = None,
        _history_enabled: Any = None,
        _path: Any = None,
        _name: str | None = None,
        command: Any = None,
    ) -> None:
        del _history_enabled, _path
        self.script = script
        self.arguments = list(arguments or [])
        self.framework = framework or "Python"
        self.communicator = communicator or "None"
        self.node_count = 1
        self.max_run_duration_seconds: int | None = None
        self.environment = Environment(_name or "default-environment")
        if conda_dependencies is not None:
            self.environment.python.conda_dependencies = conda_dependencies
        self.environment_variables: dict[str, str] = {}
        self.docker = DockerConfiguration()
        self.amlcompute = AmlComputeSection()
        self.mpi = MpiConfiguration()
        self.tensorflow = TensorflowConfiguration()
        self.pytorch = PyTorchConfiguration()
        self.spark = SparkConfiguration()
        self.hdi = HdiConfiguration()
        self.data_references: dict[str, Any] = {}
        self.data: Mapping[str, Any] = {}
        self.output_data: Mapping[str, Any] = {}
        self.command = command
        self._target: Any = "local"
        self._is_complete = True

    @property
    def target(self) -> str:
        """The name of the compute target; may be set to a target object."""
        name: str = getattr(self._target, "name", self._target)
        return name

    @target.setter
    def target(self, target: Any) -> None:
        self._target = target

    def __repr__(self) -> str:
        """Return Azure's JSON of the settings."""
        several = self.distribution()
        content = {
            "script": self.script,
            "arguments": self.arguments,
            "target": self.target,
            "framework": self.framework,
            "communicator": self.communicator,
            "maxRunDurationSeconds": self.max_run_duration_seconds,
            "nodeCount": self.node_count,
            "processCountPerNode": 1 if several is None else several.process_count_per_node,
            "environment": self.environment.to_json(),
            "environmentVariables": self.environment_variables,
            "dataReferences": self.data_references,
            "vmSize": self.amlcompute.vm_size,
        }
        return json.dumps(content, indent=4, default=repr)

    def distribution(self) -> Any:
        """Return how several processes find each other; None for a single one."""
        word = self.communicator.lower()
        if word in ("openmpi", "intelmpi"):
            self.mpi.node_count = max(self.mpi.node_count, self.node_count)
            return self.mpi
        if word == "parameterserver":
            return self.tensorflow
        if word in ("nccl", "gloo") or (self.framework.lower() == "pytorch" and word == "none"):
            several = PyTorchConfiguration(
                process_count=self.pytorch.process_count,
                node_count=max(self.pytorch.node_count, self.node_count),
            )
            return several if several.node_count * several.process_count_per_node > 1 else None
        return MpiConfiguration(node_count=self.node_count) if self.node_count > 1 else None


class ScriptRunConfig:
    """A script, and how to run it.

    Args:
        source_directory: The folder with the script; all of it is kept with the run.
        script: The script, relative to it.
        arguments: Arguments of the script: texts, numbers, data sets.
        run_config: How to run the script; the next arguments have no effect then, and a line says so.
        compute_target: A target, or its name; this machine by default.
        resume_from: A `DataPath` whose folder follows as `--resume-from`.
        command: A command line instead of a script; not offered.
    """

    def __init__(
        self,
        source_directory: str,
        script: str | None = None,
        arguments: Sequence[Any] | None = None,
        run_config: RunConfiguration | None = None,
        _telemetry_values: Any = None,
        compute_target: Any = None,
        environment: Environment | None = None,
        distributed_job_config: Any = None,
        resume_from: Any = None,
        max_run_duration_seconds: int = LONGEST_S,
        command: Any = None,
        docker_runtime_config: DockerConfiguration | None = None,
    ) -> None:
        del _telemetry_values
        self.source_directory = str(Path(source_directory or "."))
        self.command = command
        self.resume_from = resume_from
        self.distributed_job_config = distributed_job_config
        if run_config is not None:
            if compute_target is not None or environment is not None or distributed_job_config is not None:
                print(
                    "run_config is given: compute_target, environment and distributed_job_config have no effect"
                )
            self.run_config = run_config
            self.distributed_job_config = run_config.distribution()
        else:
            self.run_config = RunConfiguration()
            self.run_config.target = compute_target or "local"
            if environment is not None:
                self.run_config.environment = environment
            self.run_config.max_run_duration_seconds = max_run_duration_seconds
            if docker_runtime_config is not None:
                self.run_config.docker = docker_runtime_config
        self.script = script or self.run_config.script
        self.arguments = list(arguments if arguments is not None else self.run_config.arguments)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(source_directory={self.source_directory!r}, script={self.script!r}, "
            f"arguments={self.arguments!r}, target={self.run_config.target!r}, "
            f"environment={self.run_config.environment!r})"
        )


class SweepConfig(Printable, ABC):
    """A script that is run with many parameters, as `Experiment.submit` takes it."""

    run_config: ScriptRunConfig

    @abstractmethod
    def terms(self, workspace: BaseWorkspace) -> SweepDefinition:
        """Return the terms of the sweep.

        Raises:
            OperatorError: A number is not allowed, or a run to resume is not a child of a sweep.
        """
