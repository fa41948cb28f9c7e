"""A registered version: its manifest, verified copies of its files, and the lease that prevents its deletion."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from stoker.deployment import SAMPLE_FILES, SAMPLE_INPUT
from stoker.errors import CorruptModel, RepositoryError, UnknownModel
from stoker.models.frameworks import FRAMEWORKS, Framework
from stoker.models.ways import Ways, digest_of
from stoker.settings.files import parse_json, settings_text
from stoker.system.durable import copy_regular, lock_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_PARALLEL_FROM_BYTES = 64 << 20
_MAX_THREADS = 8
# Python writes its caches beside an entry script when it is imported: they are no part of the model.
_CACHE_FOLDER = "__pycache__"
_WEIGHTS_SUFFIXES = (".data", "_data")
_DEEPEST = 200
"""Levels of folders: no model needs more, and each is a call within another."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The record of one file in a manifest.

    Attributes:
        sha256: SHA-256 of its content, in hexadecimal digits.
    """

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source, with links resolved.

    Attributes:
        stored_bytes: What they take on the disk, which is less for sparse files.
    """

    folders: tuple[PurePosixPath, ...]
    files: Mapping[PurePosixPath, Path]
    total_bytes: int
    stored_bytes: int

    @classmethod
    def of(cls, folders: Iterable[PurePosixPath], files: Mapping[PurePosixPath, Path]) -> SourceFiles:
        """Measure the files."""
        facts = [path.stat() for path in files.values()]
        stored_bytes = sum(min(one.st_size, 512 * one.st_blocks) for one in facts)
        return cls(tuple(folders), files, sum(one.st_size for one in facts), stored_bytes)


def source_files(source: Path) -> SourceFiles:
    """List the files of a model.

    Args:
        source: A folder, or one file. The weights that an ONNX file keeps in `NAME.onnx.data` or
            `NAME.onnx_data` beside it belong to it.

    Raises:
        RepositoryError: A symbolic link leads out of the folder, nowhere, or in a circle; or there is
            something that is neither file nor folder; or folders lie in one another without end.
    """
    folders: list[PurePosixPath] = []
    files: dict[PurePosixPath, Path] = {}
    if source.is_dir():
        root = source.resolve()
        _collect(root, root, PurePosixPath(), (root,), folders, files)
    else:
        files = {PurePosixPath(path.name): _regular(path) for path in (source, *_weights_beside(source))}
    return SourceFiles.of(folders, files)


def _weights_beside(source: Path) -> Iterator[Path]:
    if source.suffix != ".onnx":
        return
    for suffix in _WEIGHTS_SUFFIXES:
        path = source.with_name(source.name + suffix)
        if path.is_symlink():
            _inside(source.parent.resolve(), path)
        if path.exists():
            yield path


def _regular(path: Path) -> Path:
    if not path.is_file():
        raise RepositoryError(f"{path} is neither a file nor a folder; register a copy of what it gives")
    return path


def with_sample(source: SourceFiles, sample: Path) -> SourceFiles:
    """Add a request that the model is known to answer, under a name by which it is found beside its files.

    Args:
        sample: The request: JSON whatever its name says, unless that is the name of an array or image.
    """
    if not sample.is_file():
        raise RepositoryError(f"the sample input {sample} is not a file")
    named = f"sample_input{sample.suffix.lower()}"
    files = {name: path for name, path in source.files.items() if str(name) not in SAMPLE_FILES}
    files[PurePosixPath(named if named in SAMPLE_FILES else SAMPLE_INPUT)] = sample
    return SourceFiles.of(source.folders, files)


def _collect(
    root: Path,
    folder: Path,
    relative: PurePosixPath,
    above: tuple[Path, ...],
    folders: list[PurePosixPath],
    files: dict[PurePosixPath, Path],
) -> None:
    """Walk one folder of a source; `above` has the resolved folders that lead to it."""
    if len(above) > _DEEPEST:
        raise RepositoryError(f"{folder} lies more than {_DEEPEST} folders deep; remove what is in there")
    for entry in sorted(folder.iterdir()):
        if entry.name == _CACHE_FOLDER:
            continue
        name = relative / entry.name
        target = _inside(root, entry) if entry.is_symlink() else entry
        if target.is_dir():
            if target in above:
                raise RepositoryError(f"the link {entry} leads to a folder that it lies in; remove it")
            folders.append(name)
            _collect(root, target, name, (*above, target), folders, files)
        elif target.is_file():
            files[name] = target
        else:
            raise RepositoryError(f"{entry} is neither a file nor a folder; remove it")


def _inside(root: Path, link: Path) -> Path:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise RepositoryError(f"the link {link} leads nowhere; remove it") from error
    if not target.is_relative_to(root):
        raise RepositoryError(
            f"the link {link} leads out of the model's folder, to {target}; "
            f"put a copy in its place (for the whole folder: cp -rL {root} COPY)"
        )
    return target


def copy_files(
    source: SourceFiles, target: Path, progress: Callable[[int, int], None] | None = None
) -> dict[PurePosixPath, FileRecord]:
    """Copy into the new folder `target`, read-only, on the disk when this returns.

    Args:
        progress: Called with the bytes copied so far and the bytes of all files, at least once a file.

    Returns:
        The record of each file, of the bytes that were written.

    Raises:
        OSError: A file cannot be read or written.
    """
    disk = os.statvfs(target.parent)
    if source.stored_bytes > disk.f_bavail * disk.f_frsize:
        raise RepositoryError(
            f"the model takes {source.stored_bytes / 1e6:.0f} MB, and {target.parent} has room for "
            f"{disk.f_bavail * disk.f_frsize / 1e6:.0f} MB; make room, or choose another --workspace"
        )
    target.mkdir(mode=0o700)
    for folder in source.folders:
        (target / folder).mkdir(mode=0o700)
    records: dict[PurePosixPath, FileRecord] = {}
    copied_bytes = 0

    def report(size_bytes: int) -> None:
        if progress is not None:
            progress(copied_bytes + size_bytes, source.total_bytes)

    for name, path in source.files.items():
        copied = copy_regular(path, target / name, report, mode=0o444)
        if copied.changed:
            raise RepositoryError(f"{path} has changed while it was copied; register it once it is written")
        copied_bytes += copied.size_bytes
        records[name] = FileRecord(copied.sha256, copied.size_bytes)
    for folder in (*source.folders, PurePosixPath()):
        sync_folder(target / folder)
    return records


def check_files(label: str, folder: Path, records: Mapping[PurePosixPath, FileRecord]) -> None:
    """Compare the files in a folder with their records, on several threads where there is much to read."""
    present = {PurePosixPath(path.relative_to(folder)) for path in _files_in(folder)}
    for name in sorted(records.keys() - present):
        raise CorruptModel(f"{label}: the file {name} of {folder} is gone; register the model again")
    for name in sorted(present - records.keys()):
        raise CorruptModel(f"{label}: the file {name} was added to {folder} after registration; remove it")

    def unchanged(name: PurePosixPath) -> bool:
        path, record = folder / name, records[name]
        if path.is_symlink() or not path.is_file() or path.stat().st_size != record.size_bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == record.sha256

    names = sorted(records)
    large = sum(record.size_bytes for record in records.values()) > _PARALLEL_FROM_BYTES
    # hashlib works outside the interpreter lock.
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1) if large else 1) as pool:
        for name, same in zip(names, pool.map(unchanged, names), strict=True):
            if not same:
                raise CorruptModel(
                    f"{label}: the file {name} of {folder} was changed after registration; "
                    "register the model again"
                )


def _files_in(folder: Path) -> Iterator[Path]:
    ahead = [folder]
    while ahead:
        for entry in ahead.pop().iterdir():
            if not entry.is_dir() or entry.is_symlink():
                yield entry
            elif entry.name != _CACHE_FOLDER:
                ahead.append(entry)


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
    "ways": dict | None,
}


@dataclass(frozen=True)
class Registered:
    """One registered version, as its manifest describes it.

    Attributes:
        version: Its version, from 1 up.
        entry: What the runtime loads, relative to `files_dir`; `.` is that folder itself.
        signature: What `stoker.tensors.Signature.to_json` gave at registration; None for an entry script,
            which says only when it is loaded, and where the model could not be loaded then.
        created_at: Time of registration, RFC 3339 in UTC.
        image: What `stoker.settings.image_input.ImageInput.to_json` gave, for a model that takes images.
        properties: Labels that whoever registered it has given for good.
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
        """Keep the version from being deleted while the body runs; a process that dies lets go of it."""
        gone = UnknownModel.deleted(self.reference)
        lease_file = self.folder / LEASE_FILE
        if not lease_file.exists():
            # A copy may lack it: `stoker models push` sends the model's files and the manifest alone.
            with contextlib.suppress(OSError):
                lease_file.touch(mode=0o600)
        try:
            lease = lock_file(lease_file, shared=True, wait=False)
        except BlockingIOError as error:  # by the process that deletes it
            raise gone from error
        except FileNotFoundError as error:
            if not self.folder.exists():
                raise gone from error
            raise CorruptModel(
                f"{self.reference}: the file {LEASE_FILE} of {self.folder} is missing and cannot be made; "
                "register the model again"
            ) from error
        try:
            # The folder can have been moved away between opening the lease and locking it.
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
            **({} if self.ways is None else {"ways": self.ways.to_json()}),
        }


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
    # The first manifests had none of these; only imported models have ways.
    manifest = {"image": None, "properties": {}, "ways": None, **manifest}
    for name, kind in _KINDS.items():
        if not isinstance(manifest[name], kind):
            raise TypeError(f"{name} is {manifest[name]!r}")
    files = {
        PurePosixPath(path): FileRecord(str(record["sha256"]), int(record["size_bytes"]))
        for path, record in manifest["files"].items()
    }
    _check_places(manifest["entry"], files)
    ways = None if manifest["ways"] is None else Ways.from_json(manifest["ways"])
    for way in () if ways is None else ways.ways.values():
        _check_places(way.entry, files)
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
        ways=ways,
    )
