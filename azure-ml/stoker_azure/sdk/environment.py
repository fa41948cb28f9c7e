"""`azureml.core.environment`: the packages, the image and the variables with which a script runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, ClassVar, Final

from stoker.settings.names import checked_name
from stoker.system.durable import locked, private_folder, replace_file
from stoker_azure.exceptions import NotOffered, UserErrorException
from stoker_azure.sdk.base import BaseWorkspace, Printable, raised_as
from stoker_azure.sdk.conda_dependencies import CondaDependencies, pip_lines, text_of
from stoker_azure.sdk.unoffered import KnownAttributes, with_unoffered_names
from stoker_runs.launch.submission import registered_names

__all__ = [
    "DEFAULT_CPU_IMAGE",
    "DEFAULT_GPU_IMAGE",
    "CondaDependencies",
    "ContainerRegistry",
    "DockerSection",
    "Environment",
    "PythonSection",
]


class ContainerRegistry(Printable):
    """A registry of images. It has no effect and is not saved: it can hold a password."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.username: str | None = None
        self.password: str | None = None


DEFAULT_CPU_IMAGE: Final = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
DEFAULT_GPU_IMAGE: Final = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04"
_CURATED: Final = "azureml-"
_DOCKER: Final = {
    "base_image": "baseImage",
    "base_dockerfile": "baseDockerfile",
    "shm_size": "shmSize",
    "arguments": "arguments",
    "enable_gpu": "enableGpu",
    "cuda_version": "cudaVersion",
    "extra_docker_file_steps": "extraDockerfileSteps",
}


class PythonSection(KnownAttributes):
    """The Python section of an environment."""

    def __init__(self) -> None:
        self.conda_dependencies: CondaDependencies | None = CondaDependencies()
        self.interpreter_path = "python"
        self._user_managed: bool | None = None
        self._file: str | None = None
        self._is_complete = True

    @property
    def conda_dependencies_file(self) -> str | None:
        """A conda file whose packages it has."""
        return self._file

    @conda_dependencies_file.setter
    def conda_dependencies_file(self, path: str | None) -> None:
        self.conda_dependencies = CondaDependencies(path)
        self._file = path

    @property
    def user_managed_dependencies(self) -> bool:
        """Whether the user has installed the packages; false if unset, as on Azure.

        Only if false is *set*, the packages are installed into a virtual environment. Otherwise this
        interpreter's are used, and compared with the list.
        """
        return bool(self._user_managed)

    @user_managed_dependencies.setter
    def user_managed_dependencies(self, value: bool) -> None:
        self._user_managed = bool(value)

    def to_json(self) -> dict[str, Any]:
        """Return the section as `inferenceconfig.json` has it."""
        content: dict[str, Any] = {"interpreterPath": self.interpreter_path}
        if self.conda_dependencies is not None:
            content["condaDependencies"] = self.conda_dependencies.as_dict()
        if self._user_managed is not None:
            content["userManagedDependencies"] = self._user_managed
        return content


class DockerSection(KnownAttributes):
    """The image of an environment. No image is built here: the section is kept for the cluster.

    Attributes:
        base_image: Name of the image that it begins with.
        base_dockerfile: A Dockerfile, or its text, instead.
        arguments: Further arguments of `docker run`.
    """

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"gpu_support", "shared_volumes", "platform", *_DOCKER}
    )

    def __init__(self) -> None:
        self.base_image: str | None = DEFAULT_CPU_IMAGE
        self.base_dockerfile: str | None = None
        self.base_image_registry = ContainerRegistry()
        self.enabled = False
        self.shm_size: str | None = None
        self.arguments: list[str] = []
        self._is_complete = True

    def to_json(self) -> dict[str, Any]:
        """Return the section as `inferenceconfig.json` has it, without the default image."""
        content = {json_name: getattr(self, name, None) for name, json_name in _DOCKER.items()}
        if self.base_image == DEFAULT_CPU_IMAGE:
            del content["baseImage"]
        return {name: value for name, value in content.items() if value}


PythonEnvironment = PythonSection
DockerEnvironment = DockerSection


@with_unoffered_names
class Environment(KnownAttributes):
    """An environment.

    Attributes:
        version: Its version, once it is registered.
    """

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"asset_id", "databricks", "r", "spark"})

    def __init__(self, name: str) -> None:
        self.name = name
        self.version: str | None = None
        self.environment_variables: dict[str, str] = {}
        self.python = PythonSection()
        self.docker = DockerSection()
        self.inferencing_stack_version: str | None = None
        self._is_complete = True

    def __repr__(self) -> str:
        return f"Environment(name={self.name!r}, version={self.version!r})"

    @staticmethod
    def from_conda_specification(name: str, file_path: str) -> Environment:
        """Read a conda file.

        Raises:
            UserErrorException: It cannot be read, or is none.
        """
        environment = Environment(name)
        environment.python.conda_dependencies = CondaDependencies(file_path)
        return environment

    @staticmethod
    def from_pip_requirements(name: str, file_path: str, pip_version: str | None = None) -> Environment:
        """Read a requirements file.

        Args:
            pip_version: Not used: it is about the image.

        Raises:
            UserErrorException: It cannot be read.
        """
        del pip_version
        environment = Environment(name)
        packages = CondaDependencies()
        packages.set_pip_requirements(_requirements(Path(file_path)))
        environment.python.conda_dependencies = packages
        return environment

    @staticmethod
    def from_docker_image(
        name: str,
        image: str,
        container_registry: ContainerRegistry | None = None,
        conda_specification: str | None = None,
        pip_requirements: str | None = None,
    ) -> Environment:
        """Make an environment with an image, which is kept for the cluster, and packages.

        Raises:
            UserErrorException: Both files are given, or one cannot be read.
        """
        del container_registry
        environment = _with_packages(name, conda_specification, pip_requirements)
        environment.docker.base_image = image
        return environment

    @staticmethod
    def from_dockerfile(
        name: str,
        dockerfile: str,
        conda_specification: str | None = None,
        pip_requirements: str | None = None,
    ) -> Environment:
        """Make an environment with a Dockerfile, which is kept for the cluster, and packages.

        Args:
            dockerfile: Its path, or its text.

        Raises:
            UserErrorException: Both files are given, or one cannot be read.
        """
        environment = _with_packages(name, conda_specification, pip_requirements)
        environment.docker.base_image, environment.docker.base_dockerfile = None, dockerfile
        return environment

    def clone(self, new_name: str) -> Environment:
        """Return a copy under another name."""
        other = copy.deepcopy(self)
        other.name, other.version = new_name, None
        return other

    def register(self, workspace: BaseWorkspace) -> Environment:
        """Save the environment, as a new version if it differs from the last, and return the saved version.

        Raises:
            UserErrorException: The name is not allowed.
        """
        with raised_as(UserErrorException):
            checked_name(self.name, "environment")
            folder = private_folder(workspace.local.create().azure_dir / "environments")
        content = self.to_json()
        with locked(folder / ".lock"):
            versions = _versions(workspace, self.name)
            if not versions or versions[-1] != content:
                versions.append(content)
                text = json.dumps(versions, indent=2).encode() + b"\n"
                replace_file(folder / f"{self.name}.json", text)
        return Environment.get(workspace, self.name)

    @staticmethod
    def get(
        workspace: BaseWorkspace, name: str, version: str | int | None = None, label: str | None = None
    ) -> Environment:
        """Return a registered environment, by default in its latest version.

        Raises:
            UserErrorException: It is not registered.
            NotOffered: A label other than `latest` is given.
        """
        if label is not None and str(label).lower() != "latest":
            raise NotOffered(f"the label {label!r} is not offered: name the version")
        versions = _versions(workspace, name)
        number = len(versions) if version is None else int(version)
        if not 1 <= number <= len(versions):
            curated = (
                "; environments of Microsoft are not here: register one of this name with the packages that it had, "
                f"by Environment.from_conda_specification({name!r}, 'environment.yml').register(workspace)"
            )
            known = ", ".join(registered_names(workspace.local)) or "none"
            raise UserErrorException(
                f"there is no environment {name!r}{'' if version is None else f' version {version}'} in the "
                f"workspace{curated if name.lower().startswith(_CURATED) else ''}; registered are: {known}"
            )
        return Environment._from_json(name, str(number), versions[number - 1])

    @staticmethod
    def list(workspace: BaseWorkspace) -> dict[str, Environment]:
        """Return the latest version of each registered environment, by name."""
        files = (workspace.local.azure_dir / "environments").glob("*.json")
        return {name: Environment.get(workspace, name) for name in sorted(file.stem for file in files)}

    def to_json(self) -> dict[str, Any]:
        """Return the environment as `inferenceconfig.json` has it."""
        return {
            "name": self.name,
            "environmentVariables": dict(self.environment_variables),
            "python": self.python.to_json(),
            "docker": self.docker.to_json(),
        }

    @staticmethod
    def _from_json(name: str, version: str, content: dict[str, Any]) -> Environment:
        environment = Environment(name)
        environment.version = version
        environment.environment_variables = dict(content["environmentVariables"])
        python = content["python"]
        conda = python.get("condaDependencies")
        environment.python.conda_dependencies = None if conda is None else CondaDependencies.of(conda)
        environment.python.interpreter_path = python["interpreterPath"]
        if "userManagedDependencies" in python:
            environment.python.user_managed_dependencies = python["userManagedDependencies"]
        for attribute, json_name in _DOCKER.items():
            if json_name in content["docker"]:
                setattr(environment.docker, attribute, content["docker"][json_name])
        return environment


def _with_packages(name: str, conda_file: str | None, requirements_file: str | None) -> Environment:
    if conda_file and requirements_file:
        raise UserErrorException("one of conda_specification and pip_requirements can be given, not both")
    if conda_file:
        return Environment.from_conda_specification(name, conda_file)
    if requirements_file:
        return Environment.from_pip_requirements(name, requirements_file)
    return Environment(name)


def _versions(workspace: BaseWorkspace, name: str) -> list[dict[str, Any]]:
    file = workspace.local.azure_dir / "environments" / f"{name}.json"
    try:
        found: list[dict[str, Any]] = json.loads(file.read_bytes())
    except FileNotFoundError:
        return []
    return found


def _requirements(file: Path) -> list[str]:
    return pip_lines(text_of(file, "requirements file").splitlines(), file.parent)
