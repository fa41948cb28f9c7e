"""Registered models on disk: immutable numbered versions, with checksums, that are complete or absent.

models/NAME/VERSION/manifest.json   the facts of the version
models/NAME/VERSION/model/…         its files, read-only
models/NAME/VERSION/.lease          locked (shared) by each process that serves the version
models/NAME/.last_version           the highest number that was ever given out
models/NAME/labels.json             the versions of its labels; see `stoker.models.labels`
models/.staging/…                   unfinished copies; those of dead processes are removed
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict, Unpack

from stoker.errors import CorruptModel, ModelInUse, OperatorError, RepositoryError, UnknownModel
from stoker.models.frameworks import Detected, Framework, detect
from stoker.models.registered import FILES_FOLDER, LEASE_FILE, MANIFEST, Registered, read_registered
from stoker.models.registered_files import SourceFiles, copy_files, source_files, with_sample
from stoker.models.ways import Ways
from stoker.settings.names import checked_name, is_name, parse_reference
from stoker.system.durable import (
    lock_file,
    locked,
    private_folder,
    read_regular,
    replace_file,
    staging_folder,
    sync_folder,
)

_LAST_VERSION = ".last_version"
_MOST_NUMBER_BYTES = 64
_LOCK = ".lock"
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


class ModelFacts(TypedDict, total=False):
    """Facts that are given when a model is registered."""

    description: str
    tags: Mapping[str, str]
    properties: Mapping[str, str]
    signature: Mapping[str, Any] | None
    image: Mapping[str, Any] | None
    source: str
    ways: Ways | None


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
        detected: Detected | None = None,
        read_signature: Callable[[Detected, Path], Mapping[str, Any] | None] | None = None,
        sample: Path | None = None,
        version: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        **facts: Unpack[ModelFacts],
    ) -> Registered:
        """Copy a model into the repository as its next version, which appears when it is complete.

        Args:
            detected: The model at the path; by default it is recognised.
            read_signature: Reads the signature, if `facts` has none, from the copy and its folder; if it raises,
                nothing is registered.
            sample: A request that the model is known to answer; it is kept beside the files, instead of an earlier
                one.
            version: Its number; by default the one after the highest number that was ever used.

        Raises:
            RepositoryError: The path holds no model, or several, or a link out of it; or it cannot be copied; or the
                sample is no file.
        """
        checked_name(name)
        if now.tzinfo is None:
            raise ValueError("the time of registration needs its zone")
        detected = detected or detect(path, framework)
        # A SavedModel may be named by its saved_model.pb: its folder is copied.
        root = path if path.is_dir() else detected.path if detected.framework == "tensorflow" else path
        try:
            source = source_files(root) if sample is None else with_sample(source_files(root), sample)
            with staging_folder(self.models_dir) as folder:
                staged = _staged(name, detected, root, source, folder / "version", progress)
                if facts.get("signature") is None and read_signature is not None:
                    copy = Detected(detected.framework, staged.path)
                    facts["signature"] = read_signature(copy, staged.files_dir)
                return self._publish(replace(staged, created_at=_rfc3339(now), **facts), version)
        except OSError as error:
            raise RepositoryError(f"{path} cannot be registered in {self.models_dir}: {error}") from error

    def register_again(
        self,
        pushed: Registered,
        name: str,
        *,
        now: datetime,
        progress: Callable[[int, int], None] | None = None,
    ) -> Registered:
        """Register a version of another repository under its own number, unless it is registered already.

        Raises:
            RepositoryError: A version of this number has other files.
        """
        if pushed.version not in self.versions(name):
            return self.register(
                name,
                pushed.files_dir,
                now=now,
                detected=Detected(pushed.framework, pushed.path),
                version=pushed.version,
                progress=progress,
                description=pushed.description,
                tags=pushed.tags,
                properties=pushed.properties,
                signature=pushed.signature,
                image=pushed.image,
                ways=pushed.ways,
            )
        registered = self.get(name, pushed.version)
        if registered.digest != pushed.digest:
            raise _already_registered(registered.reference)
        return registered

    def list(
        self, name: str | None = None, broken: dict[tuple[str, int], OperatorError] | None = None
    ) -> Sequence[Registered]:
        """Return every version of every model, or of one: by name, then by version.

        Args:
            broken: Receives the errors of versions whose manifests cannot be read, by name and number; without it the
                first error is raised.
        """
        found: list[Registered] = []
        for model in self.names() if name is None else [name]:
            for version in self.versions(model):
                try:
                    found.append(read_registered(self.models_dir / model / str(version), model, version))
                except UnknownModel:  # deleted while the list is made
                    continue
                except CorruptModel as error:
                    if broken is None:
                        raise
                    broken[model, version] = error
        return found

    def get(self, name: str, version: int | None = None) -> Registered:
        """Return one version, by default the latest."""
        versions = self.versions(name)
        if not versions:
            names = ", ".join(self.names()) or "nothing"
            raise UnknownModel(f"no model {name!r} is registered in {self.models_dir}; registered: {names}")
        if version is None:
            return read_registered(self.models_dir / name / str(versions[-1]), name, versions[-1])
        if version not in versions:
            raise UnknownModel(
                f"model {name} has no version {version}; it has {', '.join(map(str, versions))}"
            )
        return read_registered(self.models_dir / name / str(version), name, version)

    def names(self) -> Sequence[str]:
        """Return the names of all models that have a version, in alphabetical order."""
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
        """Return the version that `NAME[:VERSION]` means."""
        return self.get(*parse_reference(reference))

    def delete(self, name: str, version: int, *, force: bool = False) -> None:
        """Delete a version; its number is not given out again.

        Args:
            force: Delete it even while it is being served: a process that has loaded it goes on, but cannot load it
                again.

        Raises:
            ModelInUse: The version is being served, and `force` is off.
        """
        folder = self.models_dir / checked_name(name) / str(version)
        with contextlib.ExitStack() as cleanup:
            if version not in self.versions(name):
                self.get(name, version)
            staging = cleanup.enter_context(staging_folder(self.models_dir))
            cleanup.enter_context(locked(folder.parent / _LOCK))
            try:
                cleanup.callback(os.close, lock_file(folder / LEASE_FILE, wait=False))
            except FileNotFoundError:
                # Deleted meanwhile, or without its lease file: then no process can hold it.
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

    def _publish(self, staged: Registered, version: int | None) -> Registered:
        """Give the staged copy its number, by default the next one, and move it to its place."""
        model_dir = private_folder(self.models_dir / staged.name)
        last_path = model_dir / _LAST_VERSION
        with locked(model_dir / _LOCK):
            last = _read_last(last_path) if last_path.exists() else 0
            highest = max([last, *self.versions(staged.name)])
            version = highest + 1 if version is None else version
            if version in self.versions(staged.name):
                raise _already_registered(f"{staged.name}:{version}")
            registered = replace(staged, version=version, folder=model_dir / str(version))
            manifest = json.dumps(registered.to_json(), indent=2).encode() + b"\n"
            replace_file(staged.folder / MANIFEST, manifest, mode=0o444)
            replace_file(last_path, f"{max(highest, version)}\n".encode())
            staged.folder.rename(registered.folder)
            sync_folder(model_dir)
        return registered


def _already_registered(reference: str) -> RepositoryError:
    return RepositoryError(
        f"{reference} is registered already, with other files; give the model another name with --name"
    )


def _read_last(path: Path) -> int:
    content = read_regular(path, _MOST_NUMBER_BYTES).strip()
    if not content.isdigit():
        raise CorruptModel(
            f"{path} should hold the highest version that was ever given out, and holds {content[:20]!r}; write that "
            "number into it, so that none is given out twice"
        )
    return int(content)


def _staged(
    name: str,
    detected: Detected,
    root: Path,
    source: SourceFiles,
    folder: Path,
    progress: Callable[[int, int], None] | None,
) -> Registered:
    """Copy a model into a new folder, as a version without a number and further facts."""
    folder.mkdir(mode=0o700)
    files = copy_files(source, folder / FILES_FOLDER, progress)
    (folder / LEASE_FILE).touch(mode=0o600)
    entry = detected.path.relative_to(root) if root.is_dir() else PurePosixPath(root.name)
    return Registered(
        name=name,
        version=0,
        framework=detected.framework,
        folder=folder,
        entry=entry.as_posix(),
        files=files,
        source=root.resolve().name,
    )


def _rfc3339(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
