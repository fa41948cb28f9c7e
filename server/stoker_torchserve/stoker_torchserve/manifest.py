"""The manifest of a model archive of TorchServe: `MAR-INF/MANIFEST.json`, as torch-model-archiver writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.system.durable import read_regular

MAX_TEXT_BYTES: Final = 1 << 20
"""The longest manifest or configuration."""
MANIFEST_FILE: Final = "MAR-INF/MANIFEST.json"
DEFAULT_HANDLERS: Final = (
    "base_handler",
    "image_classifier",
    "image_segmenter",
    "object_detector",
    "text_classifier",
    "text_handler",
    "vision_handler",
)
"""The modules of `ts.torch_handler` that an archive may name instead of a file of its own."""
_RUNTIMES: Final = frozenset({"", "python", "python3"})
_WHOLE_VERSION: Final = re.compile(r"0*([1-9][0-9]{0,8})(?:\.0+)*", re.ASCII)


class Manifest(Struct, frozen=True):
    """The manifest of an archive. File names are relative to the archive's root; "" where there is none.

    Attributes:
        handler: The name of one of TorchServe's handlers (`image_classifier`), or a file of Python, with the name
            of a function or class after a colon (`handler.py:Digits`).
        document: The whole file: handlers read it as `context.manifest`.
    """

    model_name: str
    model_version: str
    handler: str
    serialized_file: str
    model_file: str
    requirements_file: str
    config_file: str
    document: dict[str, Any]

    @property
    def version(self) -> int:
        """The version as a whole number: that of `2` and `2.0` is 2, and that of anything else 1."""
        found = _WHOLE_VERSION.fullmatch(self.model_version)
        return int(found[1]) if found else 1

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the operator, a line each."""
        if not self.model_version or _WHOLE_VERSION.fullmatch(self.model_version):
            return ()
        return (
            f"{self.model_name}: its modelVersion {self.model_version} is no whole number: it is served as 1",
        )

    @property
    def handler_module(self) -> str:
        """The name of the handler's module: that of a file of the archive, or of one of TorchServe's handlers."""
        return PurePosixPath(self.handler.partition(":")[0]).name.removesuffix(".py")

    @property
    def handler_function(self) -> str:
        """The name of the function or class behind the module's; "" if none is given."""
        return self.handler.partition(":")[2]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an unpacked archive.

    Raises:
        InvalidSettings: There is none, or it is not a manifest, or names what is not in the folder.
    """
    file = folder / MANIFEST_FILE
    try:
        manifest = parse_manifest_text(read_regular(file, MAX_TEXT_BYTES))
    except FileNotFoundError as error:
        raise InvalidSettings(f"{folder} has no {MANIFEST_FILE}: it is no archive of TorchServe") from error
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    _check_files(folder, manifest)
    return manifest


def parse_manifest_text(content: bytes) -> Manifest:
    """Return the manifest in the content of its file.

    Raises:
        ValueError: It is not one; the message says which field.
    """
    try:
        return parse_manifest(json.loads(content))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_manifest(document: object) -> Manifest:
    """Return the manifest in a JSON document.

    Raises:
        ValueError: It is not one; the message says which field.
    """
    if not isinstance(document, dict) or not isinstance(model := document.get("model"), dict):
        raise ValueError("it needs an object named model")
    if str(document.get("runtime") or "") not in _RUNTIMES:
        raise ValueError(f"runtime: {document['runtime']!r}: only archives for Python can be served")
    return Manifest(
        model_name=_text(model, "modelName", required=True),
        model_version=_text(model, "modelVersion"),
        handler=_text(model, "handler", required=True),
        serialized_file=_file(model, "serializedFile"),
        model_file=_file(model, "modelFile"),
        requirements_file=_file(model, "requirementsFile"),
        config_file=_file(model, "configFile"),
        document=document,
    )


def _text(model: dict[str, Any], name: str, *, required: bool = False) -> str:
    found = model.get(name)
    if found is None and not required:
        return ""
    # Versions are numbers in some archives.
    if isinstance(found, int | float) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or (required and not found):
        raise ValueError(f"model.{name} has to be a text")
    return found


def _file(model: dict[str, Any], name: str) -> str:
    found = _text(model, name)
    if PurePosixPath(found).is_absolute() or ".." in PurePosixPath(found).parts:
        raise ValueError(f"model.{name}: {found} is not a file of the archive")
    return found


def _check_files(folder: Path, manifest: Manifest) -> None:
    file = f"{manifest.handler_module}.py"
    files = {
        # Without its ending it can be one of TorchServe's.
        "handler": file if manifest.handler.partition(":")[0].endswith(".py") else "",
        "serializedFile": manifest.serialized_file,
        "modelFile": manifest.model_file,
        "requirementsFile": manifest.requirements_file,
        "configFile": manifest.config_file,
    }
    for field, name in files.items():
        if name and not (folder / name).exists():
            raise InvalidSettings(f"{folder / MANIFEST_FILE}: {field} is {name}, which is not in the archive")
