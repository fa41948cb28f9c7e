"""`azureml.train.estimator` and `azureml.train.dnn`: older ways to say how a script is to run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final

from stoker_azure.sdk.environment import CondaDependencies, Environment
from stoker_azure.sdk.run_configuration import (
    MpiConfiguration,
    PyTorchConfiguration,
    RunConfiguration,
    ScriptRunConfig,
    TensorflowConfiguration,
)

__all__ = ["Estimator", "Mpi", "PyTorch", "SKLearn", "TensorFlow"]

Mpi = MpiConfiguration
_OLDER_NAMES: Final = frozenset(
    {"custom_docker_base_image", "conda_dependencies_file_path", "pip_requirements_file_path"}
)
_WITHOUT_EFFECT: Final = frozenset(
    {
        *("vm_size", "vm_priority", "use_docker", "image_registry_details", "source_directory_data_store"),
        *("_disable_validation", "_show_lint_warnings", "_show_package_warnings", "_enable_optimized_mode"),
        # Older ways to say how processes find each other, which the class tells.
        "distributed_backend",
    }
)


class Estimator(ScriptRunConfig):
    """A script, its parameters and its packages.

    Args:
        script_params: Its arguments by name; a value may be data, and an empty text is none.
        environment_definition: An environment instead.
        inputs: Data sets and data references that the script finds by their names.
        user_managed: Whether to use the Python of the target as it is.
        resume_from: A `DataPath` whose folder follows as `--resume-from`.
        others: Older names of these, and Azure's further arguments, without effect.

    Raises:
        TypeError: Azure has no such argument; the message has the nearest one.
    """

    OF_FRAMEWORK: ClassVar[frozenset[str]] = frozenset()

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
        use_gpu: bool = False,
        user_managed: bool = False,
        custom_docker_image: str | None = None,
        conda_dependencies_file: str | None = None,
        pip_requirements_file: str | None = None,
        shm_size: str | None = None,
        resume_from: Any = None,
        **others: Any,
    ) -> None:
        self._check_names(others)
        if environment_definition is None:
            files = (
                _in_folder(source_directory, conda_dependencies_file, "conda_dependencies_file_path", others),
                _in_folder(source_directory, pip_requirements_file, "pip_requirements_file_path", others),
            )
            wanted = [*(pip_packages or ()), *self._packages(others)]
            image = custom_docker_image or others.get("custom_docker_base_image")
            packages = _dependencies(*files, conda_packages or (), wanted)
            environment_definition = self._environment(packages, image, shm_size, user_managed=user_managed)
        config = RunConfiguration()
        config.target = compute_target or "local"
        config.environment = environment_definition
        config.environment_variables = dict(environment_variables or {})
        config.max_run_duration_seconds = max_run_duration_seconds
        super().__init__(
            source_directory, entry_script, _arguments(script_params or {}), config, resume_from=resume_from
        )
        self.inputs = list(inputs or ())
        self.use_gpu = use_gpu
        if distributed_training is None and node_count * process_count_per_node > 1:
            distributed_training = self._distribution(node_count, process_count_per_node, others)
        elif isinstance(distributed_training, MpiConfiguration):
            distributed_training.node_count = max(distributed_training.node_count, node_count)
        self.distributed_job_config = distributed_training

    def _environment(
        self, packages: CondaDependencies, image: str | None, shm_size: str | None, *, user_managed: bool
    ) -> Environment:
        environment = Environment(f"{type(self).__name__.lower()}-environment")
        environment.python.conda_dependencies = packages
        environment.python.user_managed_dependencies = user_managed
        if image:
            environment.docker.enabled, environment.docker.base_image = True, image
        environment.docker.shm_size = shm_size
        return environment

    def _check_names(self, others: Mapping[str, Any]) -> None:
        known = _WITHOUT_EFFECT | _OLDER_NAMES | self.OF_FRAMEWORK
        for name in others:
            if name not in known:
                parameters = [*inspect.signature(Estimator.__init__).parameters, *known]
                near = get_close_matches(name, parameters, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{type(self).__name__} has no argument {name!r}{hint}")

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        del others
        return ()

    def _distribution(self, nodes: int, processes: int, others: Mapping[str, Any]) -> Any:
        del others
        return MpiConfiguration(processes, nodes)


class TensorFlow(Estimator):
    """A script with TensorFlow."""

    OF_FRAMEWORK: ClassVar[frozenset[str]] = frozenset(
        {"framework_version", "worker_count", "parameter_server_count"}
    )

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        return (f"tensorflow=={_three(others.get('framework_version', '1.13'))}",)

    def _distribution(self, nodes: int, processes: int, others: Mapping[str, Any]) -> Any:
        workers = int(others.get("worker_count", nodes * processes))
        return TensorflowConfiguration(workers, int(others.get("parameter_server_count", 0)))


class PyTorch(Estimator):
    """A script with PyTorch."""

    OF_FRAMEWORK: ClassVar[frozenset[str]] = frozenset({"framework_version"})

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        version = others.get("framework_version")
        return (f"torch=={_three(version)}" if version else "torch",)

    def _distribution(self, nodes: int, processes: int, others: Mapping[str, Any]) -> Any:
        del others
        return PyTorchConfiguration(process_count=nodes * processes, node_count=nodes)


class SKLearn(Estimator):
    """A script with scikit-learn."""

    OF_FRAMEWORK: ClassVar[frozenset[str]] = frozenset({"framework_version"})

    def _packages(self, others: Mapping[str, Any]) -> Sequence[str]:
        version = others.get("framework_version")
        return (f"scikit-learn=={version}" if version else "scikit-learn",)


def _in_folder(folder: str, file: str | None, older: str, others: Mapping[str, Any]) -> str | None:
    """Return the path of a file that is relative to the folder of the script."""
    file = file or others.get(older)
    return file if file is None or Path(file).is_file() else str(Path(folder, file))


def _dependencies(
    conda_file: str | None, pip_file: str | None, conda: Iterable[str], pip: Iterable[str]
) -> CondaDependencies:
    """Merge the packages of files and lists."""
    found = CondaDependencies(conda_file)
    if pip_file is not None:
        of_file = Environment.from_pip_requirements("packages", pip_file).python.conda_dependencies
        assert of_file is not None
        for option in of_file.pip_options:
            found.set_pip_option(option)
        pip = [*of_file.pip_packages, *pip]
    for package in conda:
        found.add_conda_package(package)
    for package in pip:
        found.add_pip_package(package)
    return found


def _arguments(parameters: Mapping[str, Any]) -> list[Any]:
    return [
        part for name, value in parameters.items() for part in ((name,) if value == "" else (name, value))
    ]


def _three(version: str) -> str:
    """Return a version with three parts: `1.13` means its newest release."""
    return f"{version}.*" if str(version).count(".") == 1 else str(version)
