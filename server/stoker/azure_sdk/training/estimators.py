"""`azureml.train.estimator` and `azureml.train.dnn`: older ways to say how a script is to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.azure_sdk.environments.conda_dependencies import CondaDependencies
from stoker.azure_sdk.environments.environment import Environment
from stoker.azure_sdk.training.run_configuration import (
    MpiConfiguration,
    PyTorchConfiguration,
    RunConfiguration,
    ScriptRunConfig,
    TensorflowConfiguration,
)

__all__ = ["Estimator", "Mpi", "PyTorch", "SKLearn", "TensorFlow"]

Mpi = MpiConfiguration


class Estimator(ScriptRunConfig):
    """A script, its parameters and packages.

    Args:
        source_directory: The folder with the script.
        compute_target: A target, or its name.
        entry_script: The script.
        script_params: Its arguments by name; a value may be data, and an empty text is none.
        node_count: Machines.
        process_count_per_node: Processes of each.
        distributed_training: How they find each other.
        conda_packages: Packages.
        pip_packages: Packages.
        environment_definition: An environment instead.
        environment_variables: Variables of the script.
        max_run_duration_seconds: How long it may take.
        inputs: Data sets and data references that the script finds by their names.
        others: What else Azure takes is about its images.
    """

    packages: tuple[str, ...] = ()

    def __init__(
        self,
        source_directory: str,
        *,
        compute_target: Any = None,
        entry_script: str | None = None,
        script_params: Mapping[str, Any] | None = None,
        node_count: int = 1,
        process_count_per_node: int = 1,
        distributed_training: Any = None,
        conda_packages: Sequence[str] | None = None,
        pip_packages: Sequence[str] | None = None,
        environment_definition: Environment | None = None,
        environment_variables: Mapping[str, str] | None = None,
        max_run_duration_seconds: int | None = None,
        inputs: Sequence[Any] | None = None,
        **others: Any,
    ) -> None:
        environment = environment_definition
        wanted = [*(pip_packages or ()), *self._packages(others)]
        if environment is None:
            environment = Environment(f"{type(self).__name__.lower()}-environment")
            environment.python.conda_dependencies = CondaDependencies.create(
                pip_packages=wanted, conda_packages=conda_packages or ()
            )
        config = RunConfiguration()
        config.target = compute_target or "local"
        config.environment = environment
        config.environment_variables = dict(environment_variables or {})
        config.max_run_duration_seconds = max_run_duration_seconds
        super().__init__(source_directory, entry_script, _arguments(script_params or {}), config)
        self.inputs = list(inputs or ())
        distribution = distributed_training
        if distribution is None and node_count * process_count_per_node > 1:
            distribution = self._distribution(node_count, process_count_per_node, others)
        elif isinstance(distribution, MpiConfiguration):
            distribution.node_count = max(distribution.node_count, node_count)
        self.distributed_job_config = distribution

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        del others
        return ()

    def _distribution(self, nodes: int, processes: int, others: Mapping[str, Any]) -> Any:
        del others
        return MpiConfiguration(processes, nodes)


class TensorFlow(Estimator):
    """With TensorFlow."""

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        return (f"tensorflow=={_three(others.get('framework_version', '1.13'))}",)

    def _distribution(self, nodes: int, processes: int, others: Mapping[str, Any]) -> Any:
        workers = int(others.get("worker_count", nodes * processes))
        return TensorflowConfiguration(workers, int(others.get("parameter_server_count", 0)))


class PyTorch(Estimator):
    """With PyTorch."""

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        version = others.get("framework_version")
        return (f"torch=={_three(version)}" if version else "torch",)

    def _distribution(self, nodes: int, processes: int, others: Mapping[str, Any]) -> Any:
        del others
        return PyTorchConfiguration(process_count=nodes * processes, node_count=nodes)


class SKLearn(Estimator):
    """With scikit-learn."""

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        version = others.get("framework_version")
        return (f"scikit-learn=={version}" if version else "scikit-learn",)


def _arguments(parameters: Mapping[str, Any]) -> list[Any]:
    return [
        part for name, value in parameters.items() for part in ((name,) if value == "" else (name, value))
    ]


def _three(version: str) -> str:
    """`1.13` names the newest of its releases."""
    return f"{version}.*" if str(version).count(".") == 1 else str(version)
