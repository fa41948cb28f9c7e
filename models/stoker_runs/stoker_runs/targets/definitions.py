"""The compute targets of a workspace: `targets/NAME.yaml`, and `local`, which is always there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.names import is_name
from stoker_runs.targets.capacity import Capacity, machine_capacity
from stoker_runs.targets.container_settings import CONTAINER_KEYS, check_container_keys

__all__ = [
    "AMLCOMPUTE",
    "DOCKER",
    "LOCAL",
    "SSH",
    "Target",
    "attachable",
    "checked_settings",
    "find_target",
    "keys_of",
    "list_targets",
    "read_value",
    "secrets_of",
]

LOCAL: Final = "local"
"""Name and type of this machine."""

DOCKER: Final = "docker"
"""The type of targets whose runs are in containers on this machine, with docker or podman."""

SSH: Final = "ssh"
"""The type of machines that are reached by SSH."""

AMLCOMPUTE: Final = "amlcompute"
"""The type of Azure's clusters, for which this machine's cores and GPUs are used."""

_KEYS: Final[Mapping[str, frozenset[str]]] = {
    AMLCOMPUTE: frozenset({"type", "max_nodes", "min_nodes"}),
    LOCAL: frozenset({"type", "cores", "gpus", "shared_directory"}),
    DOCKER: frozenset({"type", *CONTAINER_KEYS}),
    SSH: frozenset(
        {
            *(
                "type",
                "cores",
                "gpus",
                "address",
                "port",
                "username",
                "key_file",
                "host_key",
                "folder",
                "python",
            ),
            *("containers", *CONTAINER_KEYS),
        }
    ),
}
"""The keys of each type's files; those of what can be attached are options of `stoker targets attach TYPE`."""

_SECRETS: Final[Mapping[str, frozenset[str]]] = {SSH: frozenset({"password", "passphrase"})}
_NUMBERS: Final = frozenset({"cores", "max_nodes", "min_nodes", "port"})
_LISTS: Final = frozenset({"gpus", "volumes", "arguments"})
_FLAGS: Final = frozenset({"containers"})
_FLAG_WORDS: Final = {"true": True, "false": False}
_HERE: Final = frozenset({AMLCOMPUTE, LOCAL, DOCKER})


@dataclass(frozen=True, slots=True)
class Target:
    """One compute target.

    Attributes:
        name: Its name.
        type: What it is: `local`, `docker`, `ssh`, `amlcompute`.
        settings: What its file says besides.
    """

    name: str
    type: str = LOCAL
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_files_here(self) -> bool:
        """Whether its runs can read files of this machine at their paths, so that data need not be copied."""
        return self.type in _HERE

    @property
    def has_containers(self) -> bool:
        """Whether its runs are in containers, and may name an image."""
        return self.type == DOCKER or bool(self.settings.get("containers", "image" in self.settings))

    def in_containers(self) -> Target:
        """The same target with its runs in containers, for a run that asks for one."""
        if self.type == SSH:
            return replace(self, settings={**self.settings, "containers": True})
        return replace(self, type=DOCKER)

    @property
    def pool(self) -> str:
        """The name of the pool of cores and GPUs that its runs share; targets on this machine share one."""
        return LOCAL if self.type in _HERE else self.name

    @property
    def capacity(self) -> Capacity | None:
        """The pool that its runs share; None if there is no such limit, or another system enforces it."""
        if self.type not in _HERE:
            cores = self.settings.get("cores")
            return None if cores is None else Capacity(cores, tuple(map(str, self.settings.get("gpus", ()))))
        there = machine_capacity() if not {"cores", "gpus"} <= set(self.settings) else Capacity(1)
        return Capacity(
            int(self.settings.get("cores", there.cores)),
            tuple(map(str, self.settings.get("gpus", there.gpus))),
        )


def find_target(targets_dir: Path, name: str) -> Target:
    """Return a compute target by its name.

    Raises:
        InvalidSettings: There is none of this name, or its file has a key or value that it cannot have.
    """
    names = list_targets(targets_dir)
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else "stoker targets list shows what there is"
        raise InvalidSettings(f"there is no compute target {name!r}; {hint}")
    path = targets_dir / f"{name}.yaml"
    if name == LOCAL and not path.is_file():
        return Target(LOCAL)
    from stoker.settings.files import read_yaml

    content = read_yaml(path, f"compute target {name}", "the settings of a compute target")
    kind, settings = checked_settings(path, content)
    if kind in _HERE and name != LOCAL:
        shared = find_target(targets_dir, LOCAL).settings
        settings = {**{key: shared[key] for key in ("cores", "gpus") if key in shared}, **settings}
    return Target(name, kind, settings)


def attachable() -> list[str]:
    """The types of targets that can be attached, in alphabetical order."""
    return sorted({DOCKER, SSH})


def keys_of(kind: str) -> list[str]:
    """The keys of a target's file of this type, besides `type`, in alphabetical order."""
    return sorted(_KEYS[kind] - {"type"})


def secrets_of(kind: str) -> list[str]:
    """The secrets of a target of this type, in `NAME.secret`, a JSON object that only the owner may read."""
    return sorted(_SECRETS.get(kind, ()))


def read_value(key: str, text: str) -> Any:
    """The value of a key as it is written on a command line: a text, a number, or several with commas.

    Raises:
        InvalidSettings: It has to be a number, and is none.
    """
    if key in _FLAGS and text in _FLAG_WORDS:
        return _FLAG_WORDS[text]
    if key in _LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if key not in _NUMBERS:
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidSettings(f"{key} is {text!r}, and has to be a number") from None


def checked_settings(path: Path, content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the type and the settings that a target's file holds.

    Args:
        path: The file, for messages.
        content: What it holds.

    Raises:
        InvalidSettings: A key is none of its type's, or has a value that it cannot have.
    """
    kind = content.get("type", LOCAL)
    if kind not in _KEYS:
        raise InvalidSettings(f"{path}: type is {kind!r}, and can be {', '.join(_KEYS)}")
    for key in content:
        if key not in _KEYS[kind]:
            near = get_close_matches(str(key), _KEYS[kind], 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(_KEYS[kind]))}"
            raise InvalidSettings(f"{path}: there is no key {key!r}; {hint}")
    cores, gpus = content.get("cores", 1), content.get("gpus", [])
    if not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
        raise InvalidSettings(f"{path}: cores is {cores!r}, and has to be a number from 1 up")
    if not isinstance(gpus, list) or len(set(map(str, gpus))) != len(gpus):
        raise InvalidSettings(
            f"{path}: gpus is {gpus!r}, and has to be a list of their numbers or UUIDs, each once"
        )
    if kind == AMLCOMPUTE:
        _check_nodes(path, content)
    if not isinstance(content.get("containers", True), bool):
        raise InvalidSettings(f"{path}: containers is {content['containers']!r}, and can be true or false")
    try:
        check_container_keys(content)
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None
    return kind, {key: value for key, value in content.items() if key != "type"}


def _check_nodes(path: Path, content: Mapping[str, Any]) -> None:
    least, most = content.get("min_nodes", 0), content.get("max_nodes")
    for key, value, from_ in (("min_nodes", least, 0), ("max_nodes", most, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < from_:
            raise InvalidSettings(f"{path}: {key} is {value!r}, and has to be a number from {from_} up")
    if most < least:
        raise InvalidSettings(f"{path}: max_nodes is {most}, less than min_nodes, {least}")


def list_targets(targets_dir: Path) -> list[str]:
    """The names of all compute targets, `local` first."""
    return [LOCAL, *sorted(name for name in _files(targets_dir) if name != LOCAL)]


def _files(targets_dir: Path) -> Iterator[str]:
    if targets_dir.is_dir():
        for path in targets_dir.glob("*.yaml"):
            if is_name(path.stem):
                yield path.stem
