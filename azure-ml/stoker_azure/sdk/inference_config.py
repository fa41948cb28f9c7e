"""`InferenceConfig` of `azureml.core.model`: the script of a service, its folder and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk.environment import Environment
from stoker_azure.sdk.unoffered import NotAClass, with_unoffered_names

__all__ = ["ContainerImage", "Image", "InferenceConfig"]

_RUNTIMES: Final = ("python", "python-slim")


@with_unoffered_names
class InferenceConfig:
    """The entry script of a service, its folder and its environment.

    Attributes:
        entry_script: The script, relative to `source_directory`, else to the current folder.
        source_directory: The folder that the script and what it imports and opens are in.
        environment: The environment; None if neither `environment` nor `conda_file` was given.
    """

    def __init__(
        self,
        entry_script: str,
        runtime: str | None = None,
        conda_file: str | None = None,
        extra_docker_file_steps: str | None = None,
        source_directory: str | None = None,
        enable_gpu: bool | None = None,
        description: str | None = None,
        base_image: str | None = None,
        base_image_registry: Any = None,
        cuda_version: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Make a configuration, and check that the files exist. Arguments about an image are kept for the cluster.

        Args:
            runtime: `python` or `python-slim`.
            conda_file: The environment as a conda file, relative to `source_directory`.

        Raises:
            WebserviceException: A file is missing, or `environment` is given beside arguments that it replaces.
            UserErrorException: The conda file cannot be read.
        """
        del base_image_registry
        self.entry_script = entry_script
        self.source_directory = source_directory
        self.environment = environment
        self.description = description
        parts = {
            "base_image": base_image,
            "enable_gpu": enable_gpu,
            "cuda_version": cuda_version,
            "extra_docker_file_steps": extra_docker_file_steps,
        }
        given = {name: value for name, value in parts.items() if value}
        _check_arguments(environment, runtime, conda_file, given)
        self._check_files()
        if conda_file or given:
            self.environment = self._environment_of(conda_file, given)

    def __repr__(self) -> str:
        return (
            f"InferenceConfig(entry_script={self.entry_script!r}, source_directory={self.source_directory!r})"
        )

    def validate_configuration(self) -> None:
        """Check that the files exist.

        Raises:
            WebserviceException: A file is missing.
        """
        self._check_files()

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as `inferenceconfig.json` has it, with absolute paths."""
        content: dict[str, Any] = {"entryScript": str(self._script.absolute())}
        if self.source_directory is not None:
            content["sourceDirectory"] = str(Path(self.source_directory).absolute())
        if self.description is not None:
            content["description"] = self.description
        if self.environment is not None:
            content["environment"] = self.environment.to_json()
        return content

    @property
    def _script(self) -> Path:
        return Path(self.source_directory or ".", self.entry_script)

    def _check_files(self) -> None:
        if self.source_directory is not None and not Path(self.source_directory).is_dir():
            raise WebserviceException(f"the source_directory {self.source_directory} is not a folder")
        if not self.entry_script or self._script.suffix != ".py" or not self._script.is_file():
            where = self.source_directory or f"the current folder, {Path.cwd()}"
            raise WebserviceException(
                f"the entry_script {self.entry_script!r} is not a Python file in {where}"
            )

    def _environment_of(self, conda_file: str | None, parts: dict[str, Any]) -> Environment:
        if conda_file:
            path = Path(self.source_directory or ".", conda_file)
            environment = Environment.from_conda_specification(path.stem, str(path))
        else:
            environment = Environment("environment")
        for name, value in parts.items():
            setattr(environment.docker, name, value)
        return environment


def _check_arguments(
    environment: Environment | None, runtime: str | None, conda_file: str | None, parts: Mapping[str, Any]
) -> None:
    others = [*parts, *(["conda_file"] * bool(conda_file)), *(["runtime"] * bool(runtime))]
    if environment is not None and others:
        raise WebserviceException(f"{' and '.join(others)} cannot be given beside an environment")
    if runtime is not None and runtime.lower() not in _RUNTIMES:
        raise WebserviceException(f"runtime must be {' or '.join(_RUNTIMES)}, got {runtime!r}")


_NO_IMAGES: Final = (
    "Stoker builds no images; give the script and its environment to InferenceConfig(entry_script='score.py', "
    "environment=Environment.from_conda_specification('myenv', 'myenv.yml')), and deploy with Model.deploy"
)


class Image(metaclass=NotAClass):
    """An image of the workspace."""

    INSTEAD = _NO_IMAGES


class ContainerImage(Image):
    """An image for Docker."""
