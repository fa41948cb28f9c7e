"""A registered version: its manifest, and the lease that prevents its deletion."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from stoker.errors import CorruptModel, UnknownModel
from stoker.models.frameworks import Framework
from stoker.models.registered_files import FileRecord, check_files
from stoker.models.ways import Ways, digest_of
from stoker.settings.files import parse_json, settings_text
from stoker.system.durable import lock_file

MANIFEST: Final = "manifest.json"
FILES_FOLDER: Final = "model"
LEASE_FILE: Final = ".lease"
_CHECKSUM: Final = "checksum"
_MOST_MANIFEST_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Registered:
    """One registered version, as its manifest describes it.

    Attributes:
        version: Its version, from 1 up.
        entry: The path that the runtime loads, relative to `files_dir`; `.` is that folder itself.
        signature: `stoker.tensors.Signature.to_json` at registration; None for an entry script, whose signature is
            known only when it is loaded, and if the model could not be loaded.
        created_at: Time of registration, RFC 3339 in UTC.
        image: `stoker.settings.image_input.ImageInput.to_json`, for a model that takes images.
        properties: Lasting labels, which are given at registration.
        ways: The ways to run it that `stoker models import` has found; `framework` and `entry` are the default's.
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
    ways: Ways | None = None

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
        """The path that the runtime loads: script, `.onnx` file, SavedModel's folder, or `.meta` file."""
        return self.files_dir / self.entry

    @property
    def size_bytes(self) -> int:
        """Length of all files together."""
        return sum(record.size_bytes for record in self.files.values())

    @property
    def digest(self) -> str:
        """The digest of its files."""
        return digest_of({str(path): record.sha256 for path, record in self.files.items()})

    def verify(self) -> None:
        """Compare each file with its checksum."""
        check_files(self.reference, self.files_dir, self.files)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the version from being deleted while the body runs; the end of the process releases it."""
        gone = UnknownModel.deleted(self.reference)
        lease_file = self.folder / LEASE_FILE
        if not lease_file.exists():
            # A copy may lack it: `stoker models push` sends the model's files and the manifest alone.
            with contextlib.suppress(OSError):
                lease_file.touch(mode=0o600)
        try:
            lease = lock_file(lease_file, shared=True, wait=False)
        except BlockingIOError as error:  # a process deletes the version
            raise gone from error
        except FileNotFoundError as error:
            if not self.folder.exists():
                raise gone from error
            raise CorruptModel(
                f"{self.reference}: the file {LEASE_FILE} of {self.folder} is missing and cannot be made; "
                "register the model again"
            ) from error
        try:
            # The folder may have been moved between opening the lease and locking it.
            if not lease_file.exists():
                raise gone
            yield
        finally:
            os.close(lease)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's content."""
        content = self._content()
        return {**content, _CHECKSUM: _checksum(content)}

    def _content(self) -> dict[str, Any]:
        files = {str(path): record for path, record in sorted(self.files.items())}
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        content: dict[str, Any] = msgspec.to_builtins({**facts, "files": files}, enc_hook=str)
        del content["folder"]
        if self.ways is None:
            del content["ways"]
        return content


def find_version(folder: Path) -> Registered | None:
    """Return the registered version in a folder of any name, as `stoker models push` sends it; None if there is none.

    Raises:
        CorruptModel: The manifest is damaged.
    """
    try:
        facts = parse_json(settings_text(folder / MANIFEST, _MOST_MANIFEST_BYTES))
        name, version = str(facts["name"]), int(facts["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return read_registered(folder, name, version)


def read_registered(folder: Path, name: str, version: int) -> Registered:
    """Read the manifest of a version."""
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
    """Return the SHA-256 of a manifest without its checksum."""
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
    registered = msgspec.convert({**manifest, "folder": folder}, Registered)
    files = {PurePosixPath(path): record for path, record in registered.files.items()}
    ways = {} if registered.ways is None else registered.ways.ways
    for entry in (registered.entry, *(way.entry for way in ways.values())):
        _check_places(entry, files)
    return replace(registered, files=files)
