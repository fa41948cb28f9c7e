"""What a deployment's YAML names: its model and its environment, registered in a workspace or described in place."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.names import name_from_file
from stoker.settings.yaml_file import read_yaml
from stoker.system.durable import private_folder
from stoker_azure.config.inference import write_conda_file
from stoker_azure.config.json_file import unknown

__all__ = ["OnlineEnvironment", "OnlineModel", "path_beside", "read_collections"]

_REGISTERED: Final = re.compile(r"azureml:(?P<name>[^:@/]+)(?::(?P<version>[^:@/]+)|@(?P<label>[^:@/]+))?")
_REMOTE: Final = re.compile(r"[a-z]+:/", re.ASCII)
_ASSET: Final = (
    "$schema",
    "name",
    "version",
    "description",
    "tags",
    "properties",
    "stage",
    "datastore",
    "id",
)
_MODEL: Final = (*_ASSET, "path", "type", "flavors", "job_name", "utc_time_created")
_MODEL_TYPES: Final = ("custom_model", "mlflow_model", "triton_model")
_IMAGE: Final = ("image", "build", "inference_config", "os_type")
_ENVIRONMENT: Final = (*_ASSET, "conda_file", *_IMAGE)
_COLLECTION: Final = ("enabled", "data", "client_id")
_BODIES: Final = {
    "request": "inputs",
    "model_inputs": "inputs",
    "response": "outputs",
    "model_outputs": "outputs",
}
"""The collections of Azure that are bodies of requests and answers, under the names that they have here."""


@dataclass(frozen=True, slots=True)
class OnlineModel:
    """The model of a deployment; one of both is given.

    Attributes:
        registered: A registered model as NAME[:VERSION].
        path: Its file or folder.
        name: What it is called on Azure, as part of AZUREML_MODEL_DIR.
        version: Its version there.
    """

    registered: str = ""
    path: Path | None = None
    name: str = ""
    version: str = "1"

    @classmethod
    def of(cls, value: Any, file: Path) -> OnlineModel | None:
        """Read the key `model`; None where there is none.

        Raises:
            InvalidSettings: It is neither a reference to a registered model nor the path of one that is there.
        """
        if value is None:
            return None
        if isinstance(value, str) and not value.startswith("file:"):
            return cls(registered=_reference(value, file.name))
        content, base = _inline(value, "model", file)
        _check_names(content, _MODEL, "model.", file.name)
        kind = content.get("type", _MODEL_TYPES[0])
        if kind not in _MODEL_TYPES:
            raise InvalidSettings(
                f"{file.name}: model.type must be {' or '.join(_MODEL_TYPES)}, got {kind!r}"
            )
        path = path_beside(content.get("path"), "model.path", base, file.name)
        if not path.exists():
            raise InvalidSettings(f"{file.name}: model.path {content['path']!r} is not there in {base}")
        name = content.get("name")
        shown = name_from_file(str(name)) if name is not None else name_from_file(path.resolve().stem)
        return cls(path=path, name=shown, version=name_from_file(str(content.get("version", 1))))

    def model_dir(self, run_dir: Path) -> Path | None:
        """What AZUREML_MODEL_DIR is for a script: on Azure the folder around what `path` names, with nothing else.

        Args:
            run_dir: The workspace's folder of the state of running servers.
        """
        if self.path is None:
            return None
        # `..` and a link at the end have no name of their own.
        target = self.path.absolute() if self.path.name not in ("", "..") else self.path.resolve()
        digest = hashlib.sha256(str(target).encode(errors="surrogateescape")).hexdigest()[:16]
        folder = private_folder(
            run_dir.absolute() / "models" / digest / "azureml-models" / self.name / self.version
        )
        link = folder / target.name
        # One that is there leads to the same: the digest is of the target.
        with contextlib.suppress(FileExistsError):
            link.symlink_to(target)
        return folder


@dataclass(frozen=True, slots=True)
class OnlineEnvironment:
    """The packages of a deployment.

    Attributes:
        conda_file: They as a file of conda.
        conda: The same, where the YAML itself has it.
        notes: What the operator is told of the rest.
    """

    conda_file: Path | None = None
    conda: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Any, file: Path) -> OnlineEnvironment:
        """Read the key `environment`.

        Raises:
            InvalidSettings: It is malformed, or the file of conda is not there.
        """
        if value is None:
            return cls()
        if isinstance(value, str) and not value.startswith("file:"):
            if not value.startswith("azureml:"):
                raise InvalidSettings(
                    f"{file.name}: environment must be azureml:NAME:VERSION or a mapping, got {value!r}"
                )
            note = (
                f"environment {value} is one of Azure's workspace: the packages are those of this server; "
                "name a conda file to have them compared or installed (--environment)"
            )
            return cls(notes=(note,))
        content, base = _inline(value, "environment", file)
        _check_names(content, _ENVIRONMENT, "environment.", file.name)
        given = ", ".join(f"{name} {content[name]}" for name in _IMAGE if content.get(name) is not None)
        notes = (f"kept for the cluster: image ({given}); no container is built here",) if given else ()
        conda = content.get("conda_file")
        if isinstance(conda, Mapping):
            return cls(conda=conda, notes=notes)
        if conda is None:
            return cls(notes=notes)
        path = path_beside(conda, "environment.conda_file", base, file.name)
        if not path.is_file():
            raise InvalidSettings(
                f"{file.name}: environment.conda_file {conda!r} is not a conda file in {base}"
            )
        return cls(conda_file=path, notes=notes)

    def file(self, conda_dir: Path, source: str) -> Path | None:
        """The packages as a file of conda, written to a folder if it has to be."""
        return self.conda_file if self.conda is None else write_conda_file(self.conda, conda_dir, source)


def path_beside(value: Any, name: str, base: Path, source: str) -> Path:
    """A path of the YAML: relative to the file in which it stands.

    Raises:
        InvalidSettings: It is none, or one of another machine.
    """
    if not isinstance(value, str) or not value:
        raise InvalidSettings(f"{source}: {name} must be a path, got {value!r}")
    if _REMOTE.match(value) or value.startswith("azureml:"):
        raise InvalidSettings(
            f"{source}: {name} {value!r} is not on this machine; download it and name the file or folder here"
        )
    return base / Path(value.removeprefix("file:")).expanduser()


def read_collections(values: Mapping[str, Any], source: str) -> dict[str, Any] | bool | None:
    """Read `data_collector` as the setting `collect`; None where nothing is said of it.

    Raises:
        InvalidSettings: It is malformed.
    """
    collections = values.get("data_collector.collections")
    if collections is None:
        return None
    prefix = "data_collector.collections"
    if not isinstance(collections, Mapping) or not all(
        isinstance(one, Mapping) for one in collections.values()
    ):
        raise InvalidSettings(f"{source}: {prefix} must be mappings by name, got {collections!r}")
    kept = []
    for name, one in collections.items():
        _check_names(one, _COLLECTION, f"{prefix}.{name}.", source)
        enabled = str(one.get("enabled", "")).lower()
        if enabled not in ("true", "false"):
            raise InvalidSettings(f"{source}: {prefix}.{name}.enabled must be true or false, got {enabled!r}")
        if enabled == "true":
            kept.append(_BODIES.get(name))
    bodies = [name for name in ("inputs", "outputs") if name in kept]
    if not bodies:
        return False
    return {"collections": bodies, "sample_rate": values.get("data_collector.sampling_rate", 1.0)}


def _inline(value: Any, name: str, file: Path) -> tuple[Mapping[str, Any], Path]:
    """A mapping that stands in the YAML, or in the file that it names; and the folder of that file."""
    if isinstance(value, str):
        other = path_beside(value, name, file.parent.absolute(), file.name)
        return read_yaml(other, f"file of {name}", f"what {name} may have, by name"), other.parent
    if not isinstance(value, Mapping):
        raise InvalidSettings(f"{file.name}: {name} must be a mapping or azureml:NAME:VERSION, got {value!r}")
    return value, file.parent.absolute()


def _check_names(content: Mapping[str, Any], known: Iterable[str], prefix: str, source: str) -> None:
    names = [prefix + name for name in known]
    for name in content:
        if prefix + str(name) not in names:
            raise unknown(prefix + str(name), names, source)


def _reference(value: str, source: str) -> str:
    found = _REGISTERED.fullmatch(value)
    if found is None:
        hint = (
            "register it here (stoker models register) and name it so"
            if value.startswith("azureml:")
            else f"a file or folder is named by model: {{path: {value}}}"
        )
        raise InvalidSettings(
            f"{source}: model must be azureml:NAME:VERSION, azureml:NAME@latest or a mapping with path, got "
            f"{value!r}; {hint}"
        )
    if found["label"] not in (None, "latest"):
        raise InvalidSettings(f"{source}: model {value!r}: of labels there is latest alone; name the version")
    return found["name"] if found["version"] is None else f"{found['name']}:{found['version']}"
