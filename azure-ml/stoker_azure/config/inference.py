"""An inference configuration for Azure, in Stoker's settings: the script, its folder, its packages, its variables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from stoker.errors import InvalidSettings
from stoker.settings.files import read_json
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.readers import unknown_setting
from stoker.system.durable import private_folder, replace_file

_RUNTIMES: Final = ("python", "python-slim")
_PARTS: Final = (
    *("runtime", "condaFile", "extraDockerfileSteps", "extraDockerFileSteps"),
    *("enableGpu", "baseImage", "baseImageRegistry", "cudaVersion"),
)
_TOP: Final = ("entryScript", "sourceDirectory", "description", "environment", *_PARTS)
_ENVIRONMENT: Final = (
    *("name", "version", "environmentVariables", "python", "inferencingStackVersion"),
    *("docker", "spark", "databricks", "r", "assetId"),
)
_PYTHON: Final = (
    *("userManagedDependencies", "interpreterPath", "condaDependenciesFile", "condaDependencies"),
    "baseCondaEnvironment",
)
_IMAGE: Final = (
    *("baseImage", "baseDockerfile", "baseImageRegistry", "extraDockerfileSteps", "extraDockerFileSteps"),
    *("enableGpu", "cudaVersion", "shmSize", "arguments"),
)


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """A checked inference configuration.

    Attributes:
        source_directory: The folder that Azure copies with the script; None for the script alone.
        conda: The environment, if the configuration contains it.
        managed: Who installs the environment, a value of `ModelSettings.environment_managed`; empty if unset.
    """

    entry_script: Path
    source_directory: Path | None
    conda_file: Path | None
    conda: Mapping[str, Any] | None
    managed: str
    environment_variables: Mapping[str, str] = field(repr=False)
    description: str | None
    source: str
    notes: tuple[str, ...]

    @classmethod
    def from_file(cls, file: Path) -> InferenceConfig:
        """Read an `inferenceconfig.json` as `az ml model deploy --ic` does, in its older and its newer form.

        Paths in it are looked for beside it, then in the current directory, from where the CLI takes them.

        Raises:
            InvalidSettings: It cannot be read, a setting is unknown or has a bad value, or a file is not there.
        """
        content = _given(read_json(file))
        reader = _Reader(file)
        check_names(content, _TOP, "", file.name)
        environment = reader.object(content, "environment") or _of_parts(content)
        check_names(environment, _ENVIRONMENT, "environment.", file.name)
        reader.object(environment, "docker", "environment.")
        python = reader.object(environment, "python", "environment.") or {}
        check_names(python, _PYTHON, "environment.python.", file.name)
        folder = reader.path(content, "sourceDirectory", Path.is_dir, "a folder")
        script = reader.path(content, "entryScript", Path.is_file, "a Python file", folder)
        if script is None or script.suffix != ".py":
            raise InvalidSettings(
                f"{file}: entryScript must name a Python file, got {content.get('entryScript')!r}"
            )
        if content.get("runtime", "python") not in _RUNTIMES:
            raise InvalidSettings(
                f"{file}: runtime must be {' or '.join(_RUNTIMES)}, got {content['runtime']!r}; Stoker runs no Spark"
            )
        managed = python.get("userManagedDependencies")
        if not isinstance(managed, bool | None):
            raise InvalidSettings(f"{file}: userManagedDependencies must be true or false, got {managed!r}")
        return cls(
            entry_script=script,
            source_directory=folder,
            conda_file=reader.path(python, "condaDependenciesFile", Path.is_file, "a conda file", folder),
            conda=reader.object(python, "condaDependencies", "environment.python."),
            managed="" if managed is None else "user" if managed else "system",
            environment_variables=reader.object(environment, "environmentVariables", "environment.") or {},
            description=content.get("description"),
            source=file.name,
            notes=tuple(_notes(file.name, content, environment, python)),
        )

    def model(self, conda_dir: Path) -> ModelSettings:
        """Return the settings of the model.

        Args:
            conda_dir: Folder for a conda file, if the configuration contains the environment.
        """
        variables = dict(self.environment_variables)
        if self.source_directory is not None:
            # On Azure the folder lies in AML_APP_ROOT, where the script is started.
            variables.setdefault("AML_APP_ROOT", str(self.source_directory.parent))
            variables.setdefault("AZUREML_SOURCE_DIRECTORY", self.source_directory.name)
        given = {
            "path": self.entry_script,
            "environment": self._conda_file(conda_dir),
            "environment_managed": self.managed,
            "environment_variables": variables,
            "description": self.description,
        }
        return model_settings({name: value for name, value in given.items() if value}, self.source)

    def _conda_file(self, conda_dir: Path) -> Path | None:
        return self.conda_file if self.conda is None else write_conda_file(self.conda, conda_dir, self.source)


def write_conda_file(conda: Mapping[str, Any], conda_dir: Path, source: str) -> Path:
    """Write an environment that a configuration contains as a conda file.

    Args:
        conda_dir: Folder for the file, which gets a folder for its content.
        source: Where the environment is from; part of the file's name, which is shown.
    """
    content = yaml.safe_dump(dict(conda), sort_keys=True).encode()
    folder = private_folder(conda_dir / hashlib.sha256(content).hexdigest()[:16])
    path = folder / f"{Path(source).name}.yml"
    if not path.is_file():
        replace_file(path, content)
    return path


def check_names(content: Mapping[Any, Any], known: Iterable[str], prefix: str, source: str) -> None:
    """Check the names of an object in a file, which messages show with the prefix."""
    names = [prefix + name for name in known]
    for name in content:
        if f"{prefix}{name}" not in names:
            raise unknown_setting(f"{prefix}{name}", sorted(names), source)


class _Reader:
    """Reads values of one file, for messages that name it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def object(self, content: Mapping[str, Any], name: str, prefix: str = "") -> dict[str, Any] | None:
        value = content.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            hint = "; environments are not registered here" if name == "environment" else ""
            raise InvalidSettings(f"{self._file}: {prefix}{name} must be an object, got {value!r}{hint}")
        return _given(value)

    def path(
        self,
        content: Mapping[str, Any],
        name: str,
        exists: Callable[[Path], bool],
        kind: str,
        folder: Path | None = None,
    ) -> Path | None:
        """Return an existing path: within `folder`, else beside the file or in the current directory."""
        value = content.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise InvalidSettings(f"{self._file}: {name} must name {kind}, got {value!r}")
        bases = [folder] if folder is not None else [self._file.parent.absolute(), Path.cwd()]
        for base in bases:
            if exists(base / value):
                return base / value
        places = " and ".join(str(base) for base in dict.fromkeys(bases))
        raise InvalidSettings(f"{self._file}: {name} {value!r} is not {kind} in {places}")


def _given(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value is not None}


def _of_parts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment that entries of the older form describe."""
    if "condaFile" not in content:
        return {}
    return {"python": {"condaDependenciesFile": content["condaFile"]}}


def _notes(
    source: str, content: Mapping[str, Any], environment: Mapping[str, Any], python: Mapping[str, Any]
) -> Iterable[str]:
    parts = [name for name in _PARTS if name in content]
    if parts and "environment" in content:
        yield f"{source}: {', '.join(parts)} ignored, because environment is given, as on Azure"
    of_image = (environment.get("docker") or {}) if "environment" in content else content
    image = [
        f"{name} {_shown(of_image[name])}"
        for name in _IMAGE
        if of_image.get(name) is True or not _is_empty(of_image.get(name))
    ]
    if image:
        yield f"kept for the cluster: image ({', '.join(image)}); no container is built here"
    if python.get("interpreterPath", "python") not in ("python", "python3"):
        yield f"interpreterPath {python['interpreterPath']} is of the image: the script runs in this server's Python"
    for section in ("spark", "databricks", "r"):
        if environment.get(section) and not _is_empty(environment[section]):
            yield f"environment.{section} has no effect: Stoker runs Python alone"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_empty(value: Any) -> bool:
    """Whether a section has no content."""
    if isinstance(value, dict):
        return all(_is_empty(inner) for inner in value.values())
    return value in (None, [], "", False, True)
