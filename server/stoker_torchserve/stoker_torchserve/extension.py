"""What the server asks this distribution for, by the name `torchserve` (`stoker.system.extensions`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stoker.errors import InvalidSettings, RepositoryError
from stoker.models.sources import ModelSource
from stoker.settings.model import ModelSettings
from stoker.settings.names import checked_service
from stoker.settings.server import ImportedSettings
from stoker_torchserve.archives import read_archive_manifest, read_text_file, unpack_archive
from stoker_torchserve.manifest import Manifest, read_manifest
from stoker_torchserve.model_config import parse_model_config, settings_of

__all__ = [
    "ENTRY_SCRIPT",
    "Manifest",
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


def find_requirements(folder: Path) -> Path | None:
    """Return the file with the packages of an unpacked archive; None if it names none."""
    manifest = read_manifest(folder)
    return folder / manifest.requirements_file if manifest.requirements_file else None
