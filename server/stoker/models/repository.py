"""Registered models on disk: immutable numbered versions, with checksums, that are whole or not there.

models/NAME/VERSION/manifest.json   what was registered
models/NAME/VERSION/model/…         its files, read-only
models/NAME/VERSION/.lease          locked (shared) by each process that serves the version
models/NAME/.last_version           the highest number that was ever given out
models/NAME/labels.json             what the labels of its versions mean; see `stoker.models.labels`
models/.staging/…                   copies under way; the ones of dead processes are swept
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stoker.errors import CorruptModel, ModelInUse, OperatorError, RepositoryError, UnknownModel
from stoker.models.frameworks import FRAMEWORKS, Detected, Framework, detect
from stoker.models.model_files import FileRecord, check_files, copy_files, source_files, with_sample
from stoker.names import checked_name, is_name, parse_reference
from stoker.system.durable import lock_file, locked, private_folder, replace_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

__all__ = ["MANIFEST", "Registered", "Repository"]

MANIFEST = "manifest.json"
_FILES = "model"
_LEASE = ".lease"
_LAST_VERSION = ".last_version"
_STAGING = ".staging"
_LOCK = ".lock"
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
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
    signature: Mapping[str, Any] | None
    files: Mapping[PurePosixPath, FileRecord]
    tags: Mapping[str, str]
    description: str
    created_at: str
    source: str
    image: Mapping[str, Any] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """`NAME:VERSION`."""
        return f"{self.name}:{self.version}"

    @property
    def files_dir(self) -> Path:
        """Folder with the model's files; the model directory of an entry script."""
        return self.folder / _FILES

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
        gone = UnknownModel(f"{self.reference} is not there any more: it was deleted")
        try:
            lease = lock_file(self.folder / _LEASE, shared=True, wait=False)
        except BlockingIOError as error:  # by the process that deletes it
            raise gone from error
        except FileNotFoundError as error:
            if not self.folder.exists():
                raise gone from error
            raise CorruptModel(
                f"{self.reference}: the file {_LEASE} of {self.folder} is gone; register the model again"
            ) from error
        try:
            # The folder can have been moved away between opening the lease and locking it.
            if not (self.folder / _LEASE).exists():
                raise gone
            yield
        finally:
            os.close(lease)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's content."""
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


class Repository:
    """The registered models of a workspace; safe to use from several processes at once.

    Args:
        models_dir: Folder of the models; created when the first one is registered.
    """

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir

    def register(
        self,
        name: str,
        path: Path,
        *,
        now: datetime,
        framework: Framework | None = None,
        description: str = "",
        tags: Mapping[str, str] = MappingProxyType({}),
        signature: Mapping[str, Any] | None = None,
        read_signature: Callable[[Detected, Path], Mapping[str, Any] | None] | None = None,
        image: Mapping[str, Any] | None = None,
        properties: Mapping[str, str] = MappingProxyType({}),
        sample: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Registered:
        """Copy a model into the repository as its next version; until the last moment nothing can be seen.

        Args:
            name: Name of the model.
            path: A model file or folder.
            now: The time, with its zone.
            framework: What the path holds, where it could be several things.
            description: Free text.
            tags: Free labels.
            signature: The model's signature as JSON, where the caller has read it.
            read_signature: Reads it from the copy, in the folder that it is given too, where `signature` is None; if
                it raises, nothing is registered.
            image: The model's image input as JSON, if it takes images.
            properties: Further labels.
            sample: A request that the model is known to answer, to be found beside its files; it takes the place of
                one that is there.
            progress: Called with the bytes copied so far and the bytes in all.

        Raises:
            InvalidSettings: The name is malformed.
            RepositoryError: The path holds no model, or several, or a link out of it; or it cannot be copied; or the
                sample is none.
        """
        checked_name(name)
        if now.tzinfo is None:
            raise ValueError("the time of registration needs its zone")
        detected = detect(path, framework)
        # A SavedModel may have been named by its saved_model.pb; what is copied is its folder.
        root = path if path.is_dir() else detected.path if detected.framework == "tensorflow" else path
        try:
            source = source_files(root)
            if sample is not None:
                source = with_sample(source, sample)
            with self._staging() as staging:
                staged = staging / "version"
                staged.mkdir(mode=0o700)
                files = copy_files(source, staged / _FILES, progress)
                (staged / _LEASE).touch(mode=0o600)
                entry = detected.path.relative_to(root) if root.is_dir() else PurePosixPath(root.name)
                if signature is None and read_signature is not None:
                    copied = staged / _FILES
                    signature = read_signature(Detected(detected.framework, copied / entry), copied)
                unnumbered = Registered(
                    name=name,
                    version=0,
                    framework=detected.framework,
                    folder=staged,
                    entry=entry.as_posix(),
                    signature=signature,
                    files=files,
                    tags=dict(tags),
                    description=description,
                    created_at=now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                    source=root.resolve().name,
                    image=image,
                    properties=dict(properties),
                )
                return self._publish(unnumbered)
        except OSError as error:
            raise RepositoryError(f"{path} cannot be registered in {self.models_dir}: {error}") from error

    def list(
        self, name: str | None = None, broken: dict[tuple[str, int], OperatorError] | None = None
    ) -> Sequence[Registered]:
        """Return every version of every model, or of one: by name, then by version.

        Args:
            name: Only versions of this model.
            broken: Receives by name and number the versions whose manifests cannot be read, with the reasons; without
                it the first of them is an error.

        Raises:
            CorruptModel: A manifest cannot be read, and `broken` is not there to receive that.
        """
        found: list[Registered] = []
        for model in self.names() if name is None else [name]:
            for version in self.versions(model):
                try:
                    found.append(self._read(model, version))
                except UnknownModel:  # deleted while the list is made
                    continue
                except CorruptModel as error:
                    if broken is None:
                        raise
                    broken[model, version] = error
        return found

    def get(self, name: str, version: int | None = None) -> Registered:
        """Return one version, the latest where none is given.

        Raises:
            UnknownModel: There is none.
            CorruptModel: Its manifest cannot be read.
        """
        versions = self.versions(name)
        if not versions:
            names = ", ".join(self.names()) or "nothing"
            raise UnknownModel(f"no model {name!r} is registered in {self.models_dir}; registered: {names}")
        if version is None:
            return self._read(name, versions[-1])
        if version not in versions:
            raise UnknownModel(
                f"model {name} has no version {version}; it has {', '.join(map(str, versions))}"
            )
        return self._read(name, version)

    def names(self) -> Sequence[str]:
        """Return the names of all models that have a version, in alphabetical order.

        Raises:
            RepositoryError: What should be the folder of the models is a file.
        """
        if not self.models_dir.is_dir():
            if self.models_dir.exists():
                raise RepositoryError(f"{self.models_dir} should be a folder; move the file away")
            return []
        names = (entry.name for entry in self.models_dir.iterdir() if is_name(entry.name))
        return sorted(name for name in names if self.versions(name))

    def versions(self, name: str) -> Sequence[int]:
        """Return the numbers of all versions of a model, ascending; none if it is not registered."""
        folder = self.models_dir / checked_name(name)
        if not folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in folder.iterdir() if _VERSION.fullmatch(entry.name))

    def resolve(self, reference: str) -> Registered:
        """Return the version that `NAME[:VERSION]` means.

        Raises:
            InvalidSettings: The reference is malformed.
            UnknownModel: There is no such version.
            CorruptModel: Its manifest cannot be read.
        """
        return self.get(*parse_reference(reference))

    def delete(self, name: str, version: int, *, force: bool = False) -> None:
        """Delete a version; its number is not given out again.

        Args:
            name: Name of the model.
            version: The version.
            force: Delete it even while it is being served: a process that has loaded it goes on, but
                cannot load it anew.

        Raises:
            UnknownModel: There is no such version.
            ModelInUse: The version is being served, and `force` is off.
        """
        folder = self.models_dir / checked_name(name) / str(version)
        with contextlib.ExitStack() as cleanup:
            if version not in self.versions(name):
                self.get(name, version)
            staging = cleanup.enter_context(self._staging())
            cleanup.enter_context(locked(folder.parent / _LOCK))
            try:
                cleanup.callback(os.close, lock_file(folder / _LEASE, wait=False))
            except FileNotFoundError:
                # Deleted meanwhile, or its lease is gone: then nobody can have it.
                if version not in self.versions(name):
                    self.get(name, version)
            except BlockingIOError as error:
                if not force:
                    raise ModelInUse(
                        f"{name}:{version} is being served; unload it (stoker models unload {name}:{version}) or "
                        "stop the server first, or delete it with --force"
                    ) from error
            folder.rename(staging / "deleted")
            sync_folder(folder.parent)

    def _read(self, name: str, version: int) -> Registered:
        folder = self.models_dir / name / str(version)
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            registered = _from_manifest(folder, manifest)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if not folder.exists():
                raise UnknownModel(f"{name}:{version} is not there any more: it was deleted") from error
            raise CorruptModel(
                f"{name}:{version}: the file {MANIFEST} of {folder} is missing or malformed; delete the version "
                f"(stoker models delete {name}:{version}) and register it again"
            ) from error
        if (registered.name, registered.version) != (name, version):
            raise CorruptModel(
                f"{folder} has the files of {registered.reference}; versions cannot be renamed: move it back, or "
                f"delete it (stoker models delete {name}:{version})"
            )
        return registered

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """Give a folder on the repository's file system that is gone at the end, whatever happens."""
        root = private_folder(self.models_dir / _STAGING)
        folder = root / uuid.uuid4().hex
        owner_path = folder.with_suffix(_LOCK)
        with locked(root / _LOCK):
            _sweep(root)
            owner = lock_file(owner_path)
            folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            owner_path.unlink(missing_ok=True)
            os.close(owner)

    def _publish(self, staged: Registered) -> Registered:
        """Give the staged copy the next number and move it to its place."""
        model_dir = private_folder(self.models_dir / staged.name)
        last_path = model_dir / _LAST_VERSION
        with locked(model_dir / _LOCK):
            last = _read_last(last_path) if last_path.exists() else 0
            version = 1 + max([last, *self.versions(staged.name)])
            registered = replace(staged, version=version, folder=model_dir / str(version))
            manifest = json.dumps(registered.to_json(), indent=2).encode() + b"\n"
            replace_file(staged.folder / MANIFEST, manifest, mode=0o444)
            replace_file(last_path, f"{version}\n".encode())
            staged.folder.rename(registered.folder)
            sync_folder(model_dir)
        return registered


def _read_last(path: Path) -> int:
    content = path.read_bytes().strip()
    if not content.isdigit():
        raise CorruptModel(
            f"{path} should hold the highest version that was ever given out, and holds {content[:20]!r}; write that "
            "number into it, so that none is given out twice"
        )
    return int(content)


def _sweep(staging: Path) -> None:
    """Remove what dead processes left; the caller holds the lock under which folders are created."""
    for name in {entry.stem for entry in staging.iterdir() if entry.name != _LOCK}:
        owner_path = staging / f"{name}{_LOCK}"
        try:
            owner = lock_file(owner_path, wait=False)
        except BlockingIOError:
            continue
        shutil.rmtree(staging / name, ignore_errors=True)
        owner_path.unlink(missing_ok=True)
        os.close(owner)


def _from_manifest(folder: Path, manifest: dict[str, Any]) -> Registered:
    if manifest["framework"] not in FRAMEWORKS:
        raise ValueError(f"unknown framework {manifest['framework']!r}")
    # The first manifests had neither.
    manifest = {"image": None, "properties": {}, **manifest}
    for name, kind in _KINDS.items():
        if not isinstance(manifest[name], kind):
            raise TypeError(f"{name} is {manifest[name]!r}")
    return Registered(
        name=manifest["name"],
        version=manifest["version"],
        framework=manifest["framework"],
        folder=folder,
        entry=manifest["entry"],
        signature=manifest["signature"],
        files={
            PurePosixPath(path): FileRecord(str(record["sha256"]), int(record["size_bytes"]))
            for path, record in manifest["files"].items()
        },
        tags=manifest["tags"],
        description=manifest["description"],
        created_at=manifest["created_at"],
        source=manifest["source"],
        image=manifest["image"],
        properties=manifest["properties"],
    )
