"""Settings of the containers of runs: by their compute target, and by the run itself, which takes precedence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings

__all__ = ["CONTAINER_KEYS", "DEFAULT_IMAGE", "PROGRAMS", "ContainerSettings", "check_container_keys"]

DEFAULT_IMAGE: Final = f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
"""The image for runs if neither they nor their target name one."""
PROGRAMS: Final = ("docker", "podman")
"""The container programs, in the order in which they are tried."""
_SIZE: Final = re.compile(r"[1-9][0-9]*[bkmg]?", re.IGNORECASE | re.ASCII)
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """How the container of a run is to be.

    Attributes:
        image: The image that the run asks for; empty for none.
        fallback: The image of the target, for runs that ask for none or whose own cannot be had.
        dockerfile: Name of a file in the run's `environment/` from which the image is built instead.
        engine: `docker` or `podman`; empty for the first that answers.
        memory: Its limit, such as `8g`; empty for none.
        shm_size: Its shared memory, through which loaders of data hand batches over.
        network: Its network; empty for that of the engine.
        volumes: Folders of this machine besides, each `HERE:THERE` or `HERE:THERE:ro`.
        arguments: Further arguments of `docker run`.
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
    def of(cls, target: Mapping[str, Any], asked: Mapping[str, Any]) -> ContainerSettings:
        """Merge the settings of a target and of a run."""
        names = {field.name for field in fields(cls)} - {"image", "fallback"}
        said = {**{name: target[name] for name in names & set(target)}}
        said |= {name: asked[name] for name in names & set(asked) if asked[name]}
        for name in ("volumes", "arguments"):
            said[name] = tuple(map(str, [*target.get(name, ()), *asked.get(name, ())]))
        return cls(
            image=str(asked.get("image") or ""), fallback=str(target.get("image") or DEFAULT_IMAGE), **said
        )


def _engine(value: Any) -> None:
    if value not in PROGRAMS:
        raise ValueError(f"can be {' or '.join(PROGRAMS)}")


def _size(value: Any) -> None:
    if _SIZE.fullmatch(str(value)) is None:
        raise ValueError("has to be a size, such as 512m or 8g")


def _image(value: Any) -> None:
    if not isinstance(value, str) or _REFERENCE.fullmatch(value) is None:
        raise ValueError("has to be the name of an image, such as docker.io/library/python:3.11")


def _name(value: Any) -> None:
    if not isinstance(value, str) or _REFERENCE.fullmatch(value) is None:
        raise ValueError("has to be a name")


def _folder(value: Any) -> None:
    if not isinstance(value, str) or not Path(value).expanduser().is_absolute():
        raise ValueError("has to be an absolute path, or one that begins with ~")


def _volumes(value: Any) -> None:
    if not isinstance(value, list) or not all(
        1 <= str(one).count(":") <= 2 and str(one).startswith("/") for one in value
    ):
        raise ValueError("has to be a list of /HERE:/THERE or /HERE:/THERE:ro")


def _texts(value: Any) -> None:
    if not isinstance(value, list):
        raise ValueError("has to be a list")


CONTAINER_KEYS: Final[Mapping[str, Callable[[Any], None]]] = {
    "engine": _engine,
    "image": _image,
    "memory": _size,
    "shm_size": _size,
    "network": _name,
    "volumes": _volumes,
    "arguments": _texts,
    "shared_directory": _folder,
}
"""The keys of a target of containers, and what looks whether a value can be."""


def check_container_keys(content: Mapping[str, Any]) -> None:
    """Check the settings of a target of containers.

    Raises:
        InvalidSettings: A value is invalid.
    """
    for key, check in CONTAINER_KEYS.items():
        if key in content:
            try:
                check(content[key])
            except ValueError as error:
                raise InvalidSettings(f"{key} is {content[key]!r}, and {error}") from None
