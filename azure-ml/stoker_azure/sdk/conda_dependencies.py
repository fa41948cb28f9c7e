"""`azureml.core.conda_dependencies`: an environment file of conda, as an object."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import yaml

from stoker.settings.files import settings_text
from stoker.settings.yaml_files import SettingsLoader
from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.unoffered import with_unoffered_names

__all__ = ["CondaDependencies", "pip_lines", "text_of"]

_NAME: Final = "project_environment"
_FILE_OPTION: Final = re.compile(r"(-r|-c|--requirement|--constraint)[\s=]+(\S+)")
_PACKAGE: Final = re.compile(r"(?:[^\s=<>!~\[]*::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)", re.ASCII)


@with_unoffered_names
class CondaDependencies:
    """The content of a conda file: `channels`, `dependencies` and the list for pip among them.

    A new one is empty. (Azure's own begins with a version of Python and `azureml-defaults`; neither is needed here.)

    Raises:
        UserErrorException: The file cannot be read, or is no conda file.
    """

    def __init__(self, conda_dependencies_file_path: str | None = None) -> None:
        self._content: dict[str, Any] = {"name": _NAME, "dependencies": []}
        if conda_dependencies_file_path is not None:
            self._content = _read(Path(conda_dependencies_file_path))

    def __repr__(self) -> str:
        return f"CondaDependencies({self._content})"

    @classmethod
    def create(
        cls,
        pip_indexurl: str | None = None,
        pip_packages: Iterable[str] | None = None,
        conda_packages: Iterable[str] | None = None,
        python_version: str | None = None,
        pin_sdk_version: bool = True,
    ) -> Self:
        """Make dependencies from lists of packages.

        Args:
            pip_indexurl: Where pip looks for packages.
            pip_packages: Packages for pip, such as `numpy>=2`.
            conda_packages: Packages for conda, such as `numpy=2`.
            pin_sdk_version: Not used: packages of Azure's SDK are not needed here.
        """
        del pin_sdk_version
        made = cls()
        if python_version is not None:
            made.set_python_version(python_version)
        for package in conda_packages or ():
            made.add_conda_package(package)
        if pip_indexurl is not None:
            made.set_pip_index_url(f"--index-url {pip_indexurl}")
        for package in pip_packages or ():
            made.add_pip_package(package)
        return made

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Make dependencies from the result of `as_dict`."""
        made = cls()
        made._content = copy.deepcopy(dict(content))
        return made

    @property
    def conda_channels(self) -> list[str]:
        """The channels."""
        return list(self._content.get("channels") or ())

    @property
    def conda_packages(self) -> list[str]:
        """The packages for conda, with Python where it is listed."""
        return [entry for entry in self._dependencies if isinstance(entry, str)]

    @property
    def pip_packages(self) -> list[str]:
        """The packages for pip."""
        return [line for line in self._pip if not line.startswith("-")]

    @property
    def pip_options(self) -> list[str]:
        """The options for pip."""
        return [line for line in self._pip if line.startswith("-")]

    def get_python_version(self) -> str | None:
        """Return the version of Python, if one is given."""
        for entry in self.conda_packages:
            if _name(entry) == "python":
                return entry.partition("=")[2].lstrip("=") or None
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return the content as YAML has it."""
        return copy.deepcopy(self._content)

    def serialize_to_string(self) -> str:
        """Return the content as YAML."""
        return yaml.safe_dump(self._content, sort_keys=False)

    def save(self, path: str | None = None) -> str:
        """Write a conda file, by default `conda_dependencies.yml` in the current folder, and return its path."""
        file = Path(path or ".")
        if file.is_dir():
            file /= "conda_dependencies.yml"
        file.write_text(self.serialize_to_string(), encoding="utf-8")
        return str(file)

    def save_to_file(self, base_directory: str, conda_file_path: str | None = None) -> str:
        """Write a conda file into a folder, and return its path in the folder."""
        name = conda_file_path or "conda_dependencies.yml"
        self.save(str(Path(base_directory) / name))
        return name

    def set_python_version(self, version: str) -> None:
        """Set the version of Python."""
        self.remove_conda_package("python")
        self._dependencies.insert(0, f"python={version}")

    def add_channel(self, channel: str) -> None:
        """Add a channel of conda."""
        channels = self._content.setdefault("channels", [])
        if channel not in channels:
            channels.append(channel)

    def remove_channel(self, channel: str) -> None:
        """Remove a channel of conda."""
        self._content["channels"] = [other for other in self.conda_channels if other != channel]

    def add_conda_package(self, conda_package: str) -> None:
        """Add a package for conda, replacing other versions of it."""
        self.remove_conda_package(conda_package)
        self._dependencies.append(conda_package)

    def remove_conda_package(self, conda_package: str) -> None:
        """Remove a package for conda, whatever its version."""
        self._dependencies[:] = [
            entry
            for entry in self._dependencies
            if not isinstance(entry, str) or _name(entry) != _name(conda_package)
        ]

    def add_pip_package(self, pip_package: str) -> None:
        """Add a package for pip, replacing other versions of it."""
        self.remove_pip_package(pip_package)
        self._pip = [*self._pip, pip_package]

    def remove_pip_package(self, pip_package: str) -> None:
        """Remove a package for pip, whatever its version."""
        self._pip = [line for line in self._pip if _name(line) != _name(pip_package)]

    def add_tensorflow_conda_package(self, core_type: str = "cpu", version: str | None = None) -> None:
        """Add TensorFlow for conda.

        Args:
            core_type: `cpu` or `gpu`.
        """
        self.add_conda_package(_tensorflow(core_type, "=", version))

    def add_tensorflow_pip_package(self, core_type: str = "cpu", version: str | None = None) -> None:
        """Add TensorFlow for pip."""
        self.add_pip_package(_tensorflow(core_type, "==", version))

    def set_pip_requirements(self, pip_requirements: Iterable[str]) -> None:
        """Replace the packages for pip."""
        self._pip = [*self.pip_options, *pip_requirements]

    def set_pip_option(self, pip_option: str) -> None:
        """Add an option for pip, such as `--extra-index-url URL`."""
        if pip_option not in self._pip:
            self._pip = [pip_option, *self._pip]

    def remove_pip_option(self, pip_option: str) -> None:
        """Remove an option for pip, whatever its value."""
        option = pip_option.split()[0]
        self._pip = [line for line in self._pip if line.split()[:1] != [option]]

    def set_pip_index_url(self, index_url: str) -> None:
        """Set where pip looks for packages: `--index-url URL`."""
        self.remove_pip_option("--index-url")
        self.set_pip_option(index_url)

    @property
    def _dependencies(self) -> list[Any]:
        found: list[Any] = self._content["dependencies"]
        return found

    @property
    def _pip(self) -> list[str]:
        """The lines for pip; assign to change them."""
        sections = [entry["pip"] for entry in self._dependencies if isinstance(entry, dict)]
        return [line for lines in sections for line in lines]

    @_pip.setter
    def _pip(self, lines: list[str]) -> None:
        self._dependencies[:] = [entry for entry in self._dependencies if isinstance(entry, str)]
        if lines:
            self._dependencies.append({"pip": lines})


def _tensorflow(core_type: str, relation: str, version: str | None) -> str:
    name = "tensorflow-gpu" if core_type == "gpu" else "tensorflow"
    return name if version is None else f"{name}{relation}{version}"


def _name(package: str) -> str:
    found = _PACKAGE.match(package.strip())
    return (found[1] if found else package).lower().replace("_", "-")


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.load(text_of(file, "conda file"), SettingsLoader)  # noqa: S506  # a SafeLoader
    except yaml.YAMLError as error:
        raise UserErrorException(f"{file} is not YAML: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("dependencies") or [], list):
        raise UserErrorException(f"{file} is not a conda file: it must have a list of dependencies")
    content["dependencies"] = content.get("dependencies") or []
    for entry in content["dependencies"]:
        if not isinstance(entry, str) and (not isinstance(entry, dict) or list(entry) != ["pip"]):
            raise UserErrorException(f"{file}: {entry!r} is neither a package nor a list under pip")
        if isinstance(entry, dict):
            entry["pip"] = pip_lines(map(str, entry["pip"] or ()), file.parent)
    return content


def pip_lines(lines: Iterable[str], folder: Path) -> list[str]:
    """Return lines of a requirements file with absolute paths, so that they mean the same in any folder.

    Args:
        lines: The lines; empty ones and comments are left out.
    """
    kept = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
    return [
        _FILE_OPTION.sub(lambda found: f"{found[1]} {(folder / found[2]).absolute()}", line)
        for line in kept
        if line
    ]


def text_of(file: Path, kind: str) -> str:
    """Return the text of a file that lists packages.

    Args:
        kind: The kind of file for messages, such as `conda file`.

    Raises:
        UserErrorException: It cannot be read.
    """
    try:
        return settings_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UserErrorException(f"the {kind} {file} cannot be read: {error}") from error
