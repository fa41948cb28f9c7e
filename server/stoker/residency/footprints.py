"""How much memory models have taken and how long they have loaded, kept from one start of a server to the next."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from stoker.system.durable import read_regular, replace_file

if TYPE_CHECKING:
    from stoker.deployment import Deployment

logger = logging.getLogger(__name__)

HOST: Final = "cpu"
"""The place of host memory; other places are the UUIDs of GPUs and MIG devices."""
_MAX_BYTES: Final = 16 << 20
_MAX_ENTRIES: Final = 10_000
_PROCESS_BYTES: Final = 64 << 20
_CONTEXT_BYTES: Final = 512 << 20
"""Memory of a process beside the weights, on the host and on a GPU: guesses."""
_LOAD_BYTES_S: Final = 200e6
"""How fast a model loads: a guess until it was loaded once."""


class Footprint(Struct, frozen=True):
    """The memory and load time of a model on a device.

    Attributes:
        measured: Whether the model was loaded; otherwise both are guessed from the size of its files.
    """

    size_bytes: int
    load_s: float
    measured: bool = True


class Footprints:
    """The footprints of versions by their files and place, in a file of the workspace.

    A file that cannot be read or written costs only guesses; the first problem is logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)
        self._has_warned = False

    def find(self, model: Deployment, place: str) -> Footprint:
        """Return what was measured for a model, or else a guess; looks at its files."""
        size_bytes, load_s = self._known.get(_key(model, place), (0, 0.0))
        if size_bytes:
            return Footprint(size_bytes, load_s)
        weights = file_bytes(model)
        return Footprint(weights + process_bytes(place), weights / _LOAD_BYTES_S, measured=False)

    def keep(self, model: Deployment, place: str, footprint: Footprint) -> None:
        """Record what was measured; the oldest entries are dropped beyond ten thousand."""
        key = _key(model, place)
        self._known.pop(key, None)
        self._known[key] = (footprint.size_bytes, round(footprint.load_s, 4))
        while len(self._known) > _MAX_ENTRIES:
            del self._known[next(iter(self._known))]

    def save(self) -> None:
        """Write the file; may block."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._known).encode())
        except OSError as error:
            if not self._has_warned:
                logger.warning("footprints of models are not kept: %s", error)
            self._has_warned = True


def process_bytes(place: str) -> int:
    """Return a guess of what a device process takes of a place's memory beside its models, in bytes."""
    return _PROCESS_BYTES if place == HOST else _CONTEXT_BYTES


def file_bytes(model: Deployment) -> int:
    """Return the size of a model's files: of a folder all of them, else the file and those named after it."""
    path = model.path
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if model.framework == "script":
            return path.stat().st_size
        beside = (file for file in path.parent.iterdir() if file.name.startswith(path.name))
        return sum(file.stat().st_size for file in beside if file.is_file())
    except OSError:
        # A load reports what is wrong with its files.
        return 0


def _key(model: Deployment, place: str) -> str:
    return f"{model.name}:{model.version}:{model.fingerprint}@{place}"


def _read(path: Path) -> dict[str, tuple[int, float]]:
    try:
        content: Any = json.loads(read_regular(path, _MAX_BYTES))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, Mapping):
        return {}
    return {key: (value[0], float(value[1])) for key, value in content.items() if _is_entry(value)}


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int | float) and not isinstance(number, bool) for number in value)
        and isinstance(value[0], int)
        and value[0] > 0
        and value[1] >= 0
    )
