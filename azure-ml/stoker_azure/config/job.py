"""The YAML of `az ml job create` (CLI v2): a command job as a run configuration."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.settings.names import read_address
from stoker.settings.yaml_files import read_yaml

_READ: Final = (
    *(
        "$schema",
        "type",
        "code",
        "command",
        "environment",
        "environment_variables",
        "compute",
        "experiment_name",
    ),
    *(
        "inputs",
        "outputs",
        "resources",
        "limits",
        "distribution",
        "tags",
    ),
)
_WITHOUT_EFFECT: Final = (
    *("properties", "services", "identity", "queue_settings", "name", "display_name", "description"),
)
_PARTS: Final[Mapping[str, Sequence[str]]] = {
    "resources": ("instance_count",),
    "distribution": ("type", "process_count_per_instance", "worker_count", "parameter_server_count"),
    "limits": ("timeout",),
}
"""The keys below others that are read."""
_OTHER_JOBS: Final = {
    "sweep": "write its search space into a file for 'stoker tune'",
    "pipeline": "submit its steps with 'stoker submit', each by itself",
}
_DISTRIBUTIONS: Final = ("mpi", "pytorch", "tensorflow")
_EXPRESSION: Final = re.compile(r"\$\{\{\s*(inputs|outputs)\.([A-Za-z_]\w*)\s*\}\}")
_SHELL: Final = re.compile(r"[|;&<>`\n]|\$\(")
_PYTHON: Final = re.compile(r"(?:.*/)?python[0-9.]*")
_HERE: Final = "azureml:"
_STORE_PATH: Final = re.compile(r"azureml://datastores/([^/]+)/paths/(.*)")
_OUTPUT_KEYS: Final = ("type", "path")


class CommandJob(Struct, frozen=True):
    """A command job.

    Attributes:
        source: The folder with its code.
        configuration: The same as a run configuration of `stoker submit --config`; its paths are absolute.
        notes: What has no effect.
    """

    source: Path
    configuration: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def from_file(cls, file: Path) -> CommandJob:
        """Read the file.

        Raises:
            InvalidSettings: It is no command job that runs one script; the message names the key.
        """
        if not file.is_file():
            raise InvalidSettings(f"there is no file {file}")
        content = read_yaml(file, "job", "keys of a command job of Azure")
        kind = content.get("type", "command")
        if kind in _OTHER_JOBS:
            raise InvalidSettings(f"{file}: jobs of type {kind} are not read: {_OTHER_JOBS[kind]}")
        if unknown := [key for key in content if key not in (*_READ, *_WITHOUT_EFFECT)]:
            raise InvalidSettings(f"{file}: there is no key {unknown[0]} of a command job")
        if kind != "command":
            raise InvalidSettings(f"{file}: type must be command, not {kind!r}")
        base = file.absolute().parent
        notes = [f"{key} has no effect here" for key in _WITHOUT_EFFECT if key in content]
        notes += [
            f"{key}.{part} has no effect here"
            for key, parts in _PARTS.items()
            for part in _mapping(content, key, file)
            if part not in parts
        ]
        inputs, texts = _inputs(content.get("inputs"), base, file)
        outputs, written = _outputs(_mapping(content, "outputs", file), file, notes)
        texts |= written
        script, *arguments = _command(content.get("command"), texts, file)
        environment = _environment(content.get("environment"), base, file, notes)
        if variables := _mapping(content, "environment_variables", file):
            environment["variables"] = variables
        several = _mapping(content, "distribution", file)
        servers = several.get("parameter_server_count") or 0
        workers = several.get("worker_count")
        kind = str(several.get("type") or "none").lower()
        if kind not in (*_DISTRIBUTIONS, "none"):
            raise InvalidSettings(
                f"{file}: distribution.type is {kind!r}, and can be {', '.join(_DISTRIBUTIONS)}"
            )
        settings: dict[str, Any] = {
            "script": script,
            "arguments": arguments,
            "environment": environment,
            "inputs": inputs,
            "outputs": outputs,
            "target": str(content.get("compute") or "local").removeprefix(_HERE),
            "experiment": content.get("experiment_name"),
            "tags": _mapping(content, "tags", file),
            "nodes": workers + servers
            if workers
            else _mapping(content, "resources", file).get("instance_count"),
            "processes_per_node": several.get("process_count_per_instance"),
            "parameter_servers": servers,
            "communicator": "" if kind == "none" else kind,
            "max_duration": _mapping(content, "limits", file).get("timeout"),
        }
        source = base / str(content.get("code", "."))
        if not source.is_dir():
            raise InvalidSettings(f"{file}: code {content['code']} is no folder")
        return cls(source, {key: value for key, value in settings.items() if value}, tuple(notes))


def _mapping(content: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, Mapping):
        raise InvalidSettings(f"{file}: {key} must be a mapping")
    return dict(value)


def _inputs(value: Any, base: Path, file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the data by name, and what stands for each input in the command."""
    data, texts = {}, {}
    for name, given in _mapping({"inputs": value}, "inputs", file).items():
        path = given.get("path") if isinstance(given, Mapping) else None
        if path is None:
            literal = given.get("value", given.get("default")) if isinstance(given, Mapping) else given
            if literal is None or isinstance(literal, Mapping | list):
                raise InvalidSettings(f"{file}: inputs.{name} has neither a path nor a value")
            texts[f"inputs.{name}"] = str(literal)
            continue
        place = str(path).removeprefix("file:")
        if found := _STORE_PATH.fullmatch(place):
            data[name] = f"{found[1]}/{found[2]}"
        elif place.startswith(_HERE) and not place.startswith("azureml://"):
            data[name] = place.removeprefix(_HERE)
        elif "://" in place and read_address(place) is None:
            raise InvalidSettings(
                f"{file}: inputs.{name} is at {place}, which is not reached from here: copy it"
            )
        else:
            data[name] = place if "://" in place else str(base / place)
        texts[f"inputs.{name}"] = f"$AZUREML_DATAREFERENCE_{name}"
    return data, texts


def _outputs(given: Mapping[str, Any], file: Path, notes: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the outputs in data stores by name, and what stands for each output in the command.

    Those without a path are below `outputs/` of the run.
    """
    stores, texts = {}, {}
    for name, output in given.items():
        settings = output if isinstance(output, Mapping) else {}
        notes += [f"outputs.{name}.{key} has no effect here" for key in settings if key not in _OUTPUT_KEYS]
        path = settings.get("path")
        texts[f"outputs.{name}"] = f"outputs/{name}" if path is None else f"$AZUREML_DATAREFERENCE_{name}"
        if path is None:
            continue
        found = _STORE_PATH.fullmatch(str(path))
        if found is None:
            raise InvalidSettings(
                f"{file}: outputs.{name} is at {path}, where nothing is written from here; name a data store: "
                "azureml://datastores/NAME/paths/PATH"
            )
        stores[name] = f"{found[1]}/{found[2]}"
    return stores, texts


def _command(value: Any, texts: Mapping[str, str], file: Path) -> list[str]:
    """Return the script and its arguments."""
    text = " ".join(str(value or "").split(" ")).strip()
    if _SHELL.search(_EXPRESSION.sub("", text)):
        raise InvalidSettings(
            f"{file}: command is of a shell; put it into a script that a Python script starts"
        )

    def replace(found: re.Match[str]) -> str:
        name = f"{found[1]}.{found[2]}"
        if name not in texts:
            raise InvalidSettings(f"{file}: command names {name}, which there is not")
        return shlex.quote(texts[name])

    try:
        python, *words = shlex.split(_EXPRESSION.sub(replace, text)) or [""]
    except ValueError as error:
        raise InvalidSettings(f"{file}: command cannot be read: {error}") from error
    if not _PYTHON.fullmatch(python) or not words or words[0].startswith("-"):
        raise InvalidSettings(f"{file}: command must be 'python SCRIPT ...', not {text!r}")
    return words


def _environment(value: Any, base: Path, file: Path, notes: list[str]) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str) and value.startswith(_HERE):
        notes.append(
            f"environment {value} is one of Azure's workspace: the run has the Python that runs Stoker"
        )
        return {}
    conda = value.get("conda_file") if isinstance(value, Mapping) else None
    if not isinstance(conda, str):
        raise InvalidSettings(
            f"{file}: environment must be azureml:NAME:VERSION, or have a conda_file that is a path"
        )
    if value.get("image") is not None:
        notes.append(f"the image {value['image']} has no effect: a container has --image of 'stoker submit'")
    return {"file": str(base / conda)}
