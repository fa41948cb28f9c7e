"""One registered version: its manifest, its files and the lease that keeps it from being deleted.

VERSION/manifest.json   what was registered, and the checksum of that
VERSION/model/…         its files, read-only
VERSION/.lease          locked (shared) by each process that serves the version
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import CorruptModel, UnknownModel
from stoker.models.frameworks import FRAMEWORKS, Framework
from stoker.models.model_files import FileRecord, check_files
from stoker.settings.files import parse_json, settings_text
from stoker.system.durable import lock_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["FILES_FOLDER", "LEASE_FILE", "MANIFEST", "Registered", "read_registered"]

MANIFEST: Final = "manifest.json"
FILES_FOLDER: Final = "model"
LEASE_FILE: Final = ".lease"
_CHECKSUM: Final = "checksum"
_MOST_MANIFEST_BYTES: Final = 256 << 20

_KINDS = {
    "name": str,
    "version": int,
    "entry": str,
    "signature": dict | None,
    "files": dict,
    "tags": dict,
    "description": str,
    "created_at": str,
    "source": str,
    "image": dict | None,
    "properties": dict,
}


@dataclass(frozen=True)
class Registered:
    """One registered version, as its manifest describes it.

    Attributes:
        name: Name of the model.
        version: Its version, from 1 up.
        framework: Its framework.
        folder: The version's folder in the repository.
        entry: What the runtime loads, relative to `files_dir`; `.` is that folder itself.
        signature: What `stoker.tensors.Signature.to_json` gave at registration; None for an entry script,
            which says only when it is loaded, and where the model could not be loaded then.
        files: Checksum and length of each file, by its path relative to `files_dir`.
        tags: The operator's own labels.
        description: The operator's own words.
        created_at: Time of registration, RFC 3339 in UTC.
        source: Name of the file or folder that was registered.
        image: What `stoker.settings.image_input.ImageInput.to_json` gave, for a model that takes images.
        properties: Labels that whoever registered it has given for good.
    """

    name: str
    version: int
    framework: Framework
    folder: Path
    entry: str
    files: Mapping[PurePosixPath, FileRecord]
    source: str
    created_at: str = ""
    signature: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    image: Mapping[str, Any] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """`NAME:VERSION`."""
        return f"{self.name}:{self.version}"

    @property
    def files_dir(self) -> Path:
        """Folder with the model's files; the model directory of an entry script."""
        return self.folder / FILES_FOLDER

    @property
    def path(self) -> Path:
        """What the runtime loads: the script, the `.onnx` file, the SavedModel's folder, the `.meta` file."""
        return self.files_dir / self.entry

    @property
    def size_bytes(self) -> int:
        """Length of all files together."""
        return sum(record.size_bytes for record in self.files.values())

    def verify(self) -> None:
        """Compare each file with its checksum.

        Raises:
            CorruptModel: A file was changed, removed or added after registration; the message names it.
        """
        check_files(self.reference, self.files_dir, self.files)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the version from being deleted while the body runs; a process that dies lets go of it.

        Raises:
            UnknownModel: The version was deleted meanwhile.
        """
        gone = UnknownModel.deleted(self.reference)
        try:
            lease = lock_file(self.folder / LEASE_FILE, shared=True, wait=False)
        except BlockingIOError as error:  # by the process that deletes it
            raise gone from error
        except FileNotFoundError as error:
            if not self.folder.exists():
                raise gone from error
            raise CorruptModel(
                f"{self.reference}: the file {LEASE_FILE} of {self.folder} is gone; register the model again"
            ) from error
        try:
            # The folder can have been moved away between opening the lease and locking it.
            if not (self.folder / LEASE_FILE).exists():
                raise gone
            yield
        finally:
            os.close(lease)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's content."""
        content = self._content()
        return {**content, _CHECKSUM: _checksum(content)}

    def _content(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "framework": self.framework,
            "entry": self.entry,
            "signature": self.signature,
            "files": {
                str(path): {"sha256": record.sha256, "size_bytes": record.size_bytes}
                for path, record in sorted(self.files.items())
            },
            "tags": dict(self.tags),
            "description": self.description,
            "created_at": self.created_at,
            "source": self.source,
            "image": self.image,
            "properties": dict(self.properties),
        }


def read_registered(folder: Path, name: str, version: int) -> Registered:
    """Read the manifest of a version.

    Args:
        folder: The folder of the version.
        name: The model whose version it is to be.
        version: The number that it is to have.

    Raises:
        UnknownModel: The version was deleted meanwhile.
        CorruptModel: The manifest cannot be read, was changed after registration, or is that of another version.
    """
    try:
        manifest = parse_json(settings_text(folder / MANIFEST, _MOST_MANIFEST_BYTES))
        registered = _from_manifest(folder, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if not folder.exists():
            raise UnknownModel.deleted(f"{name}:{version}") from error
        raise CorruptModel(
            f"{name}:{version}: the file {MANIFEST} of {folder} is missing or malformed; delete the version "
            f"(stoker models delete {name}:{version}) and register it again"
        ) from error
    # The first manifests had no checksum.
    if manifest.get(_CHECKSUM, checksum := _checksum(manifest)) != checksum:
        raise CorruptModel(
            f"{name}:{version}: the file {MANIFEST} of {folder} was changed after registration; delete the version "
            f"(stoker models delete {name}:{version}) and register it again"
        )
    if (registered.name, registered.version) != (name, version):
        raise CorruptModel(
            f"{folder} has the files of {registered.reference}; versions cannot be renamed: move it back, or "
            f"delete it (stoker models delete {name}:{version})"
        )
    return registered


def _checksum(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of what a manifest says besides."""
    content = {key: value for key, value in manifest.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_places(entry: str, files: Iterable[PurePosixPath]) -> None:
    """Raise ValueError unless all paths of a manifest are in its folder, and the entry has checksums."""
    listed = list(files)
    for path in (PurePosixPath(entry), *listed):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} is not in the folder of the version")
    if not any(PurePosixPath(entry) in (path, *path.parents) for path in listed):
        raise ValueError(f"there is no checksum of {entry}")


def _from_manifest(folder: Path, manifest: dict[str, Any]) -> Registered:
    if manifest["framework"] not in FRAMEWORKS:
        raise ValueError(f"unknown framework {manifest['framework']!r}")
    # The first manifests had neither.
    manifest = {"image": None, "properties": {}, **manifest}
    for name, kind in _KINDS.items():
        if not isinstance(manifest[name], kind):
            raise TypeError(f"{name} is {manifest[name]!r}")
    files = {
        PurePosixPath(path): FileRecord(str(record["sha256"]), int(record["size_bytes"]))
        for path, record in manifest["files"].items()
    }
    _check_places(manifest["entry"], files)
    return Registered(
        name=manifest["name"],
        version=manifest["version"],
        framework=manifest["framework"],
        folder=folder,
        entry=manifest["entry"],
        signature=manifest["signature"],
        files=files,
        tags=manifest["tags"],
        description=manifest["description"],
        created_at=manifest["created_at"],
        source=manifest["source"],
        image=manifest["image"],
        properties=manifest["properties"],
    )
