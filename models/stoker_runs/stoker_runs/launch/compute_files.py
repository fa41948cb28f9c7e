"""Workbench's `.compute` files: a compute target, as a project's `aml_config/NAME.compute` has it.

Such a file wins over the target of its name in the workspace: it becomes that target whenever it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.names import checked_name
from stoker.settings.files import read_yaml
from stoker.system.durable import private_folder, replace_file
from stoker.workspace import Workspace
from stoker_runs.launch.azure_keys import flag, known_keys, text, whole
from stoker_runs.targets.definitions import DOCKER, LOCAL, find_target

__all__ = ["CONFIG_FOLDERS", "ComputeFile", "find_compute", "keep_target", "read_compute"]

CONFIG_FOLDERS: Final = ("aml_config", ".azureml", ".")
"""Where the files of a project are looked for, in this order."""
SSH: Final = "ssh"
"""The type of targets that are reached by SSH."""
_TYPES: Final[Mapping[str, str]] = {
    "local": LOCAL,
    "docker": DOCKER,
    "localdocker": DOCKER,
    "remotedocker": SSH,
    "remote": SSH,
    "cluster": SSH,
    "amlcompute": LOCAL,
}
_KEYS: Final = (
    *("type", "address", "username", "password", "baseDockerImage", "nvidiaDocker", "sharedVolumes"),
    *("nativeSharedDirectory", "userManagedEnvironment", "pythonLocation", "yarnDeployMode", "nodeCount"),
    *("priority", "useSSHKey", "privateKeyFile", "sparkSubmitLocation"),
)
_NOT_USED: Final = {
    "yarndeploymode": "yarnDeployMode is for Spark on a cluster",
    "priority": "priority is not used: who comes first is served first",
}
_DEFAULT_PYTHON: Final = "python"
"""What Workbench writes where nobody has chosen an interpreter."""
_SPARK_SUBMIT: Final = "spark-submit"


@dataclass(frozen=True, slots=True)
class ComputeFile:
    """What a `.compute` file says.

    Attributes:
        name: Of the target.
        settings: What the file of the target has to say, `type` among that.
        image: The image of its containers; empty for none.
        gpus: How many GPUs its runs hold where they do not say it; None leaves that to the target.
        python: The interpreter that it names; empty for the target's own.
        user_managed: Whether the packages of that interpreter are used, and not those of a conda file.
        nodes: How many machines its runs have.
        notes: What it says that has no effect here, a line each.
    """

    name: str
    settings: Mapping[str, Any]
    image: str = ""
    gpus: int | None = None
    python: str = ""
    user_managed: bool = False
    nodes: int = 1
    notes: tuple[str, ...] = ()


def find_compute(project: Path, name: str) -> Path | None:
    """The `.compute` file of a target in a project folder; None where it has none."""
    places = (project / folder / f"{name}.compute" for folder in CONFIG_FOLDERS)
    return next((path for path in places if path.is_file()), None)


def read_compute(path: Path) -> ComputeFile:
    """Read a `.compute` file.

    Raises:
        InvalidSettings: It has a value that it cannot have.
    """
    notes: list[str] = []
    content = known_keys(read_yaml(path, "compute file", "names with values"), _KEYS, str(path), notes)
    word = text(content.get("type"))
    kind = _TYPES.get(word.lower())
    if kind is None:
        raise InvalidSettings(f"{path}: type is {word!r}, and can be {', '.join(_TYPES)}")
    settings: dict[str, Any] = {"type": kind}
    notes += [words for key, words in _NOT_USED.items() if content.get(key) is not None]
    if text(content.get("sparksubmitlocation")) not in ("", _SPARK_SUBMIT):
        notes.append("sparkSubmitLocation is not used: Python runs the script, with the package pyspark")
    image = text(content.get("basedockerimage"))
    in_docker = "docker" in word.lower()
    if kind == SSH:
        settings |= _address(path, content)
        settings["containers"] = in_docker
    if word.lower() == "amlcompute":
        notes.append(f"the cores and GPUs of this machine stand for {path.stem}")
    shared = text(content.get("nativeshareddirectory"))
    if shared and (not in_docker or flag(content.get("sharedvolumes"), f"{path}: sharedVolumes")):
        settings["shared_directory"] = shared
    elif shared:
        notes.append("nativeSharedDirectory is not used: containers have it with sharedVolumes: true")
    wants_gpu = flag(content.get("nvidiadocker"), f"{path}: nvidiaDocker")
    return ComputeFile(
        path.stem,
        settings,
        image if in_docker else "",
        (1 if wants_gpu else 0) if in_docker else None,
        _python(content, word),
        flag(content.get("usermanagedenvironment"), f"{path}: userManagedEnvironment"),
        whole(content.get("nodecount") or 1, f"{path}: nodeCount"),
        tuple(notes),
    )


def _address(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    address, port = _host_and_port(text(content.get("address")))
    if not address:
        raise InvalidSettings(
            f"{path}: address is missing: the name of the machine, HOST:PORT or [IPV6]:PORT"
        )
    found: dict[str, Any] = {"address": address}
    if port:
        found["port"] = whole(port, f"{path}: the port of the address")
    if text(content.get("username")):
        found["username"] = text(content["username"])
    if text(content.get("privatekeyfile")):
        found["key_file"] = text(content["privatekeyfile"])
    return found


def _host_and_port(address: str) -> tuple[str, str]:
    """The two parts; several colons outside of brackets are those of an IPv6 address without a port."""
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        return host, port.removeprefix(":")
    if address.count(":") > 1:
        return address, ""
    host, _, port = address.partition(":")
    return host, port


def _python(content: Mapping[str, Any], word: str) -> str:
    python = text(content.get("pythonlocation"))
    if python == _DEFAULT_PYTHON:
        return ""
    return str(Path(python).expanduser()) if word.lower() == LOCAL and python.startswith("~") else python


def keep_target(compute: ComputeFile, workspace: Workspace, say: Callable[[str], None]) -> None:
    """Make the target of a `.compute` file one of the workspace; what the file does not speak of stays as it is.

    Raises:
        InvalidSettings: It cannot be one.
    """
    import yaml

    checked_name(compute.name, "compute target")
    for line in compute.notes:
        say(line)
    path = private_folder(workspace.create().targets_dir) / f"{compute.name}.yaml"
    before = read_yaml(path, "compute target", "its settings") if path.is_file() else {}
    # What was found out about a machine says nothing about another one.
    same = before.get("type", LOCAL) == compute.settings["type"] and before.get(
        "address"
    ) == compute.settings.get("address")
    content = {**(before if same else {}), **compute.settings}
    if content == before or (compute.name == LOCAL and content == {"type": LOCAL}):
        return
    old = path.read_bytes() if path.is_file() else None
    replace_file(path, yaml.safe_dump(content, sort_keys=False).encode())
    try:
        find_target(workspace.targets_dir, compute.name)
    except InvalidSettings:
        if old is None:
            path.unlink()
        else:
            replace_file(path, old)
        raise
