"""The files of a registered version: listed, copied with their checksums, and compared with these."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from msgspec import Struct

from stoker.deployment import SAMPLE_FILES, SAMPLE_INPUT
from stoker.errors import CorruptModel, RepositoryError
from stoker.system.durable import copy_regular, sync_folder

_PARALLEL_FROM_BYTES = 64 << 20
_MAX_THREADS = 8

# Python writes caches beside an entry script: they are no part of the model.
_CACHE_FOLDER = "__pycache__"
_WEIGHTS_SUFFIXES = (".data", "_data")
_DEEPEST = 200
"""The most levels of folders: no model needs more, and each is a nested call."""


class FileRecord(Struct, frozen=True):
    """The record of one file in a manifest.

    Attributes:
        sha256: SHA-256 of its content, in hexadecimal digits.
    """

    sha256: str
    size_bytes: int


class SourceFiles(Struct, frozen=True):
    """The files of a source, with links resolved.

    Attributes:
        stored_bytes: Their size on the disk, which is less for sparse files.
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
        RepositoryError: A symbolic link leads out of the folder, nowhere, or in a circle; or an entry is neither file
            nor folder; or folders are nested too deeply.
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
        sample: The request. It is taken for JSON unless it has the name of an array or image.
    """
    files = {name: path for name, path in source.files.items() if str(name) not in SAMPLE_FILES}
    files[PurePosixPath(name_sample(sample))] = sample
    return SourceFiles.of(source.folders, files)


def name_sample(sample: Path) -> str:
    """Return the name by which a sample is found beside files; raise RepositoryError if it is no file."""
    if not sample.is_file():
        raise RepositoryError(f"the sample input {sample} is not a file")
    named = f"sample_input{sample.suffix.lower()}"
    return named if named in SAMPLE_FILES else SAMPLE_INPUT


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
    """Compare the files in a folder with their records, on several threads if the files are large."""
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
