"""The functions that the server calls in this distribution, by the name `torchserve` (`stoker.system.extensions`)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final, NamedTuple

from stoker.errors import InvalidSettings, RepositoryError
from stoker.models.sources import ModelSource
from stoker.settings.model import ModelSettings
from stoker.settings.names import checked_service
from stoker.settings.server import ImportedSettings
from stoker_torchserve.archives import read_archive_manifest, read_text_file, unpack_archive
from stoker_torchserve.manifest import DEFAULT_HANDLERS, Manifest, read_manifest
from stoker_torchserve.model_config import parse_model_config, settings_of

__all__ = [
    "ENTRY_SCRIPT",
    "ArchivedModel",
    "Manifest",
    "find_handler",
    "find_model",
    "find_requirements",
    "read_archive_manifest",
    "read_manifest",
    "read_server_config",
    "read_source",
    "unpack_archive",
]

ENTRY_SCRIPT: Final = Path(__file__).parent / "entry" / "score.py"
"""The script that runs handlers."""


def read_source(path: Path) -> ModelSource:
    """Return an archive, packed or not, as what can be served: its name and version, and what it says as settings.

    Raises:
        RepositoryError: It cannot be read, or asks for what is not offered; the message says what.
    """
    manifest = read_archive_manifest(path)
    settings, notes = None, manifest.notes
    if manifest.config_file:
        content = read_text_file(path, manifest.config_file)
        if content is None:
            raise RepositoryError(f"{path} names {manifest.config_file} as its configFile, which it has not")
        try:
            settings, more = settings_of(
                parse_model_config(content), f"{manifest.config_file} of {path.name}"
            )
        except (ValueError, InvalidSettings) as error:
            raise RepositoryError(f"{path}: {error}") from error
        notes += more
    try:
        name = checked_service(manifest.model_name)
    except InvalidSettings as error:
        raise RepositoryError(f"{path}: {error}") from error
    return ModelSource(name, manifest.version, "torchserve", path, own_settings=settings, notes=notes)


def read_server_config(file: Path) -> tuple[tuple[ModelSettings, ...], ImportedSettings]:
    """Read a `config.properties`; see `stoker_torchserve.server_config`."""
    from stoker_torchserve.server_config import read_server_config

    return read_server_config(file)


class ArchivedModel(NamedTuple):
    """The model of an archive, without its handler.

    Attributes:
        path: Its file: a program of `torch.export`, TorchScript, an ONNX model, or weights.
        model_class: The class of weights, `MODULE:CLASS`, in a module beside the file; None for the others.
        handler: The name of TorchServe's handler that the archive names.
    """

    path: Path
    model_class: str | None
    handler: str


def find_model(folder: Path) -> ArchivedModel:
    """Return the model of an unpacked archive whose handler is one of TorchServe's, which takes tensors to tensors.

    Raises:
        RepositoryError: Its handler is its own, or it has no model file, or a model file without one class.
    """
    manifest = read_manifest(folder)
    if (
        manifest.handler_module not in DEFAULT_HANDLERS
        or (folder / f"{manifest.handler_module}.py").is_file()
    ):
        raise RepositoryError(
            f"{folder} has a handler of its own, {manifest.handler}: what it does is no model"
        )
    if not manifest.serialized_file:
        raise RepositoryError(f"{folder} has no serializedFile, so there is no model in it")
    model_class = None
    if manifest.model_file:
        file = folder / manifest.model_file
        try:
            names = [
                node.name for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef)
            ]
        except (OSError, ValueError, SyntaxError) as error:
            raise RepositoryError(f"the modelFile {file} cannot be read: {error}") from error
        if len(names) != 1:
            raise RepositoryError(f"the modelFile {file} has to define one class, that of the model")
        model_class = f"{file.stem}:{names[0]}"
    return ArchivedModel(folder / manifest.serialized_file, model_class, manifest.handler_module)


def find_handler(folder: Path) -> Path:
    """Return the file of an unpacked archive's handler: its own, or of one of TorchServe's that of the stand-in."""
    name = f"{read_manifest(folder).handler_module}.py"
    own = folder / name
    return own if own.is_file() else Path(__file__).parent / "ts" / "torch_handler" / name


def find_requirements(folder: Path) -> Path | None:
    """Return the file with the packages of an unpacked archive; None if it names none."""
    manifest = read_manifest(folder)
    return folder / manifest.requirements_file if manifest.requirements_file else None
