"""The compute targets of a workspace: `targets/NAME.yaml`, and `local`, which is always there."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.errors import InvalidSettings
from stoker.gpu.nvml import gpus
from stoker.settings.names import did_you_mean, is_name
from stoker.settings.readers import (
    choice_of,
    number_of,
    read_switch,
    read_text,
    read_value,
    text_of,
    unknown_setting,
)
from stoker.system.resources import usable_cores


class Capacity(Struct, frozen=True):
    """The capacity of a machine.

    Attributes:
        gpus: Their names for CUDA_VISIBLE_DEVICES: numbers or UUIDs.
        unit: What is counted as its cores: cores, or whole nodes of a cluster.
        is_cluster: Whether it is that of a cluster, which counts its GPUs itself.
    """

    cores: int
    gpus: tuple[str, ...] = ()
    unit: str = "core"
    is_cluster: bool = False


def machine_capacity() -> Capacity:
    """The capacity of this machine: cores within this process's limit, and the GPUs in CUDA_VISIBLE_DEVICES."""
    return Capacity(usable_cores(), _gpu_names())


def _gpu_names() -> tuple[str, ...]:
    try:
        found = gpus()
    except OSError:
        # No driver, so no GPU.
        return ()
    if not found:
        return ()
    # Imported here: it imports modules of models and settings, which most machines that run scripts do not need.
    from stoker.gpu.facts import visible_devices

    visible = visible_devices(found, os.environ)
    return tuple(device.part.uuid if device.part is not None else device.gpu.uuid for device in visible)


DEFAULT_IMAGE: Final = f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
"""The image for runs if neither they nor their target name one."""
PROGRAMS: Final = ("docker", "podman")
"""The container programs, in the order in which they are tried."""


class ContainerSettings(Struct, frozen=True):
    """The settings of a run's container.

    Attributes:
        image: The image that the run asks for; empty for none.
        fallback: The image of the target, for runs that ask for none or whose own cannot be had.
        dockerfile: Name of a file in the run's `environment/` from which the image is built instead.
        engine: `docker` or `podman`; empty for the first that answers.
        shm_size: Its shared memory, through which loaders of data hand batches over.
        volumes: Folders of this machine besides, each `HERE:THERE` or `HERE:THERE:ro`.
    """

    image: str = ""
    fallback: str = DEFAULT_IMAGE
    dockerfile: str = ""
    engine: str = ""
    memory: str = ""
    shm_size: str = "2g"
    network: str = ""
    volumes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, target: Mapping[str, Any], requested: Mapping[str, Any]) -> ContainerSettings:
        """Merge the settings of a target and of a run."""
        names = set(cls.__struct_fields__) - {"image", "fallback"}
        chosen = {**{name: target[name] for name in names & set(target)}}
        chosen |= {name: requested[name] for name in names & set(requested) if requested[name]}
        for name in ("volumes", "arguments"):
            chosen[name] = tuple(map(str, [*target.get(name, ()), *requested.get(name, ())]))
        return cls(
            image=str(requested.get("image") or ""),
            fallback=str(target.get("image") or DEFAULT_IMAGE),
            **chosen,
        )


LOCAL: Final = "local"
"""Name and type of this machine."""

DOCKER: Final = "docker"
"""The type of targets whose runs are in containers on this machine, with docker or podman."""

SSH: Final = "ssh"
"""The type of machines that are reached by SSH."""

RAY: Final = "ray"
"""The type of Ray clusters, whose nodes see the workspace at its path."""

KUBERNETES: Final = "kubernetes"
"""The type of Kubernetes clusters, whose pods mount the workspace at its path."""

SPARK: Final = "spark"
"""The type of head nodes of Spark clusters, which are reached by SSH and run scripts by spark-submit."""
SPARK_MODES: Final = ("client", "cluster")
"""Where the driver of a script runs: on the head node, or on one that YARN chooses."""
YARN: Final = "yarn"
"""The default of `master`."""

AMLCOMPUTE: Final = "amlcompute"
"""The type of Azure's clusters, for which this machine's cores and GPUs are used."""

_Reader = Callable[[Any], Any]
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", re.ASCII)
_COUNT: Final = number_of(int, 1, 1_000_000)
_COUNT_OR_NONE: Final = number_of(int, 0, 1_000_000)
_NAME: Final = text_of(_REFERENCE, "must be a name")
_IMAGE: Final = text_of(_REFERENCE, "must be the name of an image, such as docker.io/library/python:3.11")
_SIZE: Final = text_of(re.compile(r"[1-9][0-9]*[bkmgBKMG]?", re.ASCII), "must be a size, such as 512m or 8g")
_WORD: Final = text_of(re.compile(r"[^-\s].*"), "must be a text, such as yarn")


def _folder(value: Any) -> str:
    if not isinstance(value, str) or not Path(value).expanduser().is_absolute():
        raise ValueError("must be an absolute path, or one that begins with ~")
    return value


def _list(value: Any) -> list[str]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list):
        raise ValueError("must be a list")
    return list(map(str, value))


def _volumes(value: Any) -> list[str]:
    volumes = _list(value)
    if not all(1 <= one.count(":") <= 2 and one.startswith("/") for one in volumes):
        raise ValueError("must be a list of /HERE:/THERE or /HERE:/THERE:ro")
    return volumes


def _gpus(value: Any) -> list[str]:
    names = _list(value)
    if len(set(names)) != len(names):
        raise ValueError("must be a list of their numbers or UUIDs, each once")
    return names


_CONTAINERS: Final[Mapping[str, _Reader]] = {
    "engine": choice_of(*PROGRAMS),
    "image": _IMAGE,
    "memory": lambda value: _SIZE(str(value)),
    "shm_size": lambda value: _SIZE(str(value)),
    "network": _NAME,
    "volumes": _volumes,
    "arguments": _list,
    "shared_directory": _folder,
}
_SLOTS: Final[Mapping[str, _Reader]] = {"cores": _COUNT, "gpus": _gpus}
_NODES: Final[Mapping[str, _Reader]] = {"max_nodes": _COUNT, "min_nodes": _COUNT_OR_NONE}
_MACHINE: Final[Mapping[str, _Reader]] = {
    "address": _WORD,
    "port": number_of(int, 1, 65535),
    **dict.fromkeys(("username", "key_file", "host_key", "folder", "python"), read_text),
}
_KEYS: Final[Mapping[str, Mapping[str, _Reader]]] = {
    AMLCOMPUTE: _NODES,
    LOCAL: {**_SLOTS, "shared_directory": _folder},
    DOCKER: _CONTAINERS,
    KUBERNETES: {
        **{key: _CONTAINERS[key] for key in ("image", "memory", "shm_size", "shared_directory")},
        **dict.fromkeys(("claim", "context", "namespace", "python"), read_text),
        "mount_path": _folder,
    },
    RAY: {
        **_NODES,
        **dict.fromkeys(("address", "python"), read_text),
        "node_cores": _COUNT,
        "node_gpus": _COUNT_OR_NONE,
        "idle_s": _COUNT_OR_NONE,
        "shared_directory": _folder,
    },
    SSH: {**_SLOTS, **_MACHINE, **_CONTAINERS, "containers": read_switch},
    SPARK: {
        **_MACHINE,
        "master": _WORD,
        "deploy_mode": choice_of(*SPARK_MODES),
        "spark_submit": _WORD,
        "shared_directory": _folder,
    },
}
"""The keys of each type's files with their readers; those of what can be attached are options of `attach TYPE`."""
_NEEDED: Final[Mapping[str, Sequence[str]]] = {
    AMLCOMPUTE: ("max_nodes",),
    KUBERNETES: ("image", "claim"),
    RAY: ("max_nodes",),
    SPARK: ("address",),
    SSH: ("address",),
}

_SECRETS: Final[Mapping[str, frozenset[str]]] = {
    RAY: frozenset({"token"}),
    SPARK: frozenset({"password", "passphrase"}),
    SSH: frozenset({"password", "passphrase"}),
}
_HERE: Final = frozenset({AMLCOMPUTE, LOCAL, DOCKER})


class Target(Struct, frozen=True):
    """One compute target.

    Attributes:
        type: What it is: `local`, `docker`, `ssh`, `spark`, `ray`, `kubernetes`, `amlcompute`.
        settings: What its file says besides.
    """

    name: str
    type: str = LOCAL
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def reads_files_here(self) -> bool:
        """Whether its runs can read files of this machine at their paths, so that data need not be copied."""
        return self.type in _HERE

    @property
    def is_cluster(self) -> bool:
        """Whether its runs are on nodes of a cluster, which see the workspace at its path."""
        return self.type in (KUBERNETES, RAY)

    def mounted_folder(self, workspace_dir: Path) -> Path:
        """Return the folder that nodes of a cluster see at its path: the workspace's, unless it says another one."""
        return Path(self.settings.get("mount_path", workspace_dir))

    @property
    def takes_inputs(self) -> bool:
        """Whether its runs get data of this machine, at its paths or as copies."""
        return self.reads_files_here or self.type in (SSH, SPARK)

    @property
    def has_containers(self) -> bool:
        """Whether its runs are in containers, and may name an image."""
        return self.type == DOCKER or bool(self.settings.get("containers", "image" in self.settings))

    def in_containers(self) -> Target:
        """The same target with its runs in containers, for a run that asks for one.

        Raises:
            InvalidSettings: It has no containers.
        """
        if self.type in (RAY, SPARK):
            raise InvalidSettings(f"{self.name} starts no containers: its nodes are as the cluster has them")
        if self.type == KUBERNETES:
            return self
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
        if self.type == RAY:
            nodes, cores = self.settings["max_nodes"], self.settings.get("node_cores")
            unit = "node" if cores is None else "core"
            return Capacity(nodes * (cores or 1), unit=unit, is_cluster=True)
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
        hint = did_you_mean(name, names, "stoker targets list shows what there is")
        raise InvalidSettings(f"there is no compute target {name!r}; {hint}")
    path = targets_dir / f"{name}.yaml"
    if name == LOCAL and not path.is_file():
        return Target(LOCAL)
    from stoker.settings.yaml_files import read_yaml

    content = read_yaml(path, f"compute target {name}", "the settings of a compute target")
    kind, settings = checked_settings(path, content)
    if kind in _HERE and name != LOCAL:
        shared = find_target(targets_dir, LOCAL).settings
        settings = {**{key: shared[key] for key in ("cores", "gpus") if key in shared}, **settings}
    return Target(name, kind, settings)


def attachable() -> list[str]:
    """The types of targets that can be attached, in alphabetical order."""
    return sorted({DOCKER, KUBERNETES, RAY, SPARK, SSH})


def keys_of(kind: str) -> list[str]:
    """The keys of a target's file of this type, besides `type`, in alphabetical order."""
    return sorted(_KEYS[kind])


def secrets_of(kind: str) -> list[str]:
    """The secrets of a target of this type, in `NAME.secret`, a JSON object that only the owner may read."""
    return sorted(_SECRETS.get(kind, ()))


def checked_settings(path: Path, content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the type and the settings that a target's file holds, or the options of a command.

    Args:
        path: The file, for messages.

    Raises:
        InvalidSettings: A key is none of its type's, is missing, or has a value that it cannot have.
    """
    kind = content.get("type", LOCAL)
    if kind not in _KEYS:
        raise InvalidSettings(f"{path}: type is {kind!r}, and can be {', '.join(_KEYS)}")
    readers, settings = _KEYS[kind], {}
    for key, value in content.items():
        if key in readers:
            settings[key] = read_value(key, value, readers[key], str(path))
        elif key != "type":
            raise unknown_setting(key, sorted(readers), str(path))
    for key in _NEEDED.get(kind, ()):
        if key not in settings:
            raise InvalidSettings(f"{path}: {key} is missing, which a target of type {kind} needs")
    least, most = settings.get("min_nodes", 0), settings.get("max_nodes", 0)
    if most < least:
        raise InvalidSettings(f"{path}: max_nodes is {most}, less than min_nodes, {least}")
    master = settings.get("master", YARN)
    if settings.get("deploy_mode") == "cluster" and master != YARN:
        raise InvalidSettings(
            f"{path}: deploy_mode is cluster, and master is {master!r}: Spark starts drivers in Python on its nodes "
            "with the master yarn alone; use deploy_mode client"
        )
    return kind, settings


def list_targets(targets_dir: Path) -> list[str]:
    """The names of all compute targets, `local` first."""
    return [LOCAL, *sorted(name for name in _files(targets_dir) if name != LOCAL)]


def _files(targets_dir: Path) -> Iterator[str]:
    if targets_dir.is_dir():
        for path in targets_dir.glob("*.yaml"):
            if is_name(path.stem):
                yield path.stem


_OTHERS_MODE: Final = 0o077
_DEFAULT_FOLDER: Final = "~/.stoker-runs"
_DEFAULT_PYTHON: Final = "python3"


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How to connect to a machine.

    Attributes:
        address: Its host name, an address, or an alias of the user's SSH configuration.
        port: Where its sshd listens; None leaves that to the user's SSH configuration, 22 where it says nothing.
        username: Who logs in; empty for what that says, and else for who submits.
        key_file: The private key; empty for those of the user's agent and of `~/.ssh`.
        host_key: Its public key as in `known_hosts` (`ssh-ed25519 AAAA…`), or the fingerprint of that
            (`SHA256:…`); empty where the user's `known_hosts` decides.
        folder: The target's folder on the machine; `~` is the home of the user who logs in.
    """

    name: str
    address: str
    type: str = SSH
    port: int | None = None
    username: str = ""
    key_file: str = ""
    host_key: str = ""
    folder: str = _DEFAULT_FOLDER
    python: str = _DEFAULT_PYTHON
    password: str = field(default="", repr=False)
    passphrase: str = field(default="", repr=False)

    @classmethod
    def of(cls, target: Target, targets_dir: Path) -> SshSettings:
        """Read the settings of a target.

        Args:
            targets_dir: Where its secrets are, `NAME.secret`.
        """
        own = {key: value for key, value in target.settings.items() if key in _MACHINE}
        return cls(target.name, type=target.type, **own, **read_secrets(target, targets_dir))

    def attach_line(self, *changes: str) -> str:
        """Return the command line that attaches the target again with some options changed.

        Args:
            changes: The options, each with its value: they replace those of the same name.
        """
        own = {
            "--address": self.address,
            "--port": "" if self.port is None else str(self.port),
            "--username": self.username,
            "--key-file": self.key_file,
            "--host-key": self.host_key,
            "--folder": "" if self.folder == _DEFAULT_FOLDER else self.folder,
            "--python": "" if self.python == _DEFAULT_PYTHON else self.python,
        }
        words = ["stoker", "targets", "attach", self.type, self.name]
        words += [
            word for name, value in own.items() if value and name not in changes for word in (name, value)
        ]
        for secret, value in (("--ask-password", self.password), ("--ask-passphrase", self.passphrase)):
            words += [secret] if value and secret not in changes else []
        return shlex.join([*words, *changes])

    @property
    def host(self) -> str:
        """The name of the machine in messages."""
        if self.port in (None, 22):
            return self.address
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def read_secrets(target: Target, targets_dir: Path) -> dict[str, Any]:
    """Return the secrets of a target that its file in `targets_dir` has.

    Raises:
        InvalidSettings: Others may read the file, or it cannot be read.
    """
    path = targets_dir / f"{target.name}.secret"
    try:
        if path.stat().st_mode & _OTHERS_MODE:
            raise InvalidSettings(f"others may read the secrets in {path}; chmod 600 {path}")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"the secrets in {path} cannot be read: attach the target again") from error
    return {name: str(content[name]) for name in secrets_of(target.type) if name in content}
