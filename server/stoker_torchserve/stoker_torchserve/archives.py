"""TorchServe's archives as files: `.mar` (zip), `.tar.gz`, and the folder of an archive that is not packed.

An archive is a stranger's. It may hold files and folders and nothing else, all below the folder that it is unpacked
to, and no more than `_MOST_TIMES` its own size.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from msgspec import Struct

from stoker.errors import RepositoryError
from stoker.system.durable import lock_file, locked, private_folder
from stoker_torchserve.manifest import MANIFEST_FILE, MAX_TEXT_BYTES, Manifest, parse_manifest_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_TIMES: Final = 100
_LEAST_LIMIT_BYTES: Final = 64 << 20
_MOST_ENTRIES: Final = 50_000
_ENCRYPTED: Final = 1
_COMPRESSIONS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGED: Final = (OSError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError)
"""The errors of reading a damaged archive."""
_COPIED_BYTES: Final = 1 << 20
_MANIFEST: Final = PurePosixPath(MANIFEST_FILE)


class _Entry(Struct, frozen=True):
    """A file of an archive, at its place below the archive's root."""

    name: PurePosixPath
    size_bytes: int
    open: Callable[[], IO[bytes]]


def read_archive_manifest(path: Path) -> Manifest:
    """Read the manifest of an archive, packed or not.

    Raises:
        RepositoryError: It cannot be read, or is no manifest.
    """
    content = read_text_file(path, MANIFEST_FILE)
    if content is None:
        raise RepositoryError(
            f"{path} has no {MANIFEST_FILE}: it is no archive of TorchServe; unpack it and serve what is in it"
        )
    try:
        return parse_manifest_text(content)
    except ValueError as error:
        raise RepositoryError(f"{MANIFEST_FILE} of {path}: {error}") from error


def read_text_file(path: Path, name: str) -> bytes | None:
    """Return a short file of an archive, packed or not; None if it has no such file.

    Raises:
        RepositoryError: It cannot be read, or is longer than `MAX_TEXT_BYTES`.
    """
    if path.is_dir():
        file = path / name
        try:
            return _limited(file.stat().st_size, name, path, file.read_bytes) if file.is_file() else None
        except OSError as error:
            raise RepositoryError(f"{file} cannot be read: {error.strerror}") from error
    status = path.stat()
    return _read_packed(path, name, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read_packed(path: Path, name: str, size_bytes: int, changed_ns: int) -> bytes | None:
    """Return a file of a packed archive; looking at one that has not changed costs nothing."""
    del size_bytes, changed_ns
    with _opened(path) as entries:
        for entry in entries:
            if entry.name == PurePosixPath(name):
                return _limited(entry.size_bytes, name, path, functools.partial(_read, entry))
    return None


def _read(entry: _Entry) -> bytes:
    with entry.open() as file:
        return file.read()


def _limited(size_bytes: int, name: str, path: Path, read: Callable[[], bytes]) -> bytes:
    if size_bytes > MAX_TEXT_BYTES:
        raise RepositoryError(f"{name} of {path} is longer than {MAX_TEXT_BYTES >> 20} MiB")
    return read()


class _Unpacked(gzip.GzipFile):
    """A `.tar.gz` without its compression, of which a header has no gigabytes: tarfile reads each as a whole."""

    def read(self, size: int | None = -1) -> bytes:
        """Read some bytes; raises ValueError if more are asked for than any header has."""
        if size is None or not 0 <= size <= _COPIED_BYTES:
            raise ValueError("one of its headers is too long")
        return super().read(size)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Sequence[_Entry]]:
    """Open a packed archive; its entries have been checked."""
    try:
        if path.suffix == ".mar":
            with zipfile.ZipFile(path) as archive:
                yield _checked(path, _zip_entries(path, archive))
        else:
            with _Unpacked(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
                yield _checked(path, _tar_entries(path, archive))
    except _DAMAGED as error:
        raise RepositoryError(f"{path} cannot be read as an archive of TorchServe: {error}") from error


def _zip_entries(path: Path, archive: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in archive.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.is_dir():
            continue
        if kind not in (0, stat.S_IFREG):
            raise RepositoryError(
                f"{path} holds {info.filename!r}, which is a link or a device; pack it anew"
            )
        if info.flag_bits & _ENCRYPTED or info.compress_type not in _COMPRESSIONS:
            raise RepositoryError(
                f"{path} holds {info.filename!r} encrypted, or in a rare format; pack it anew"
            )
        yield _Entry(_place(path, info.filename), info.file_size, functools.partial(archive.open, info))


def _tar_entries(path: Path, archive: tarfile.TarFile) -> Iterator[_Entry]:
    for info in archive:
        if info.isdir():
            continue
        if not info.isreg():
            raise RepositoryError(f"{path} holds {info.name!r}, which is a link or a device; pack it anew")
        yield _Entry(_place(path, info.name), info.size, functools.partial(_tar_file, archive, info))


def _tar_file(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file is not None, "it is a regular file"
    return file


def _place(path: Path, name: str) -> PurePosixPath:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\\" in name or "\0" in name or not place.parts:
        raise RepositoryError(f"{path} holds {name!r}, which would lie outside its folder; pack it anew")
    return place


def _checked(path: Path, entries: Iterator[_Entry]) -> list[_Entry]:
    """Limit what the entries of an archive take; take the folder away that those of a `.tar.gz` have around them."""
    most_bytes = max(_LEAST_LIMIT_BYTES, _MOST_TIMES * path.stat().st_size)
    found: list[_Entry] = []
    total_bytes = 0
    for entry in entries:
        total_bytes += entry.size_bytes
        if total_bytes > most_bytes:
            raise RepositoryError(
                f"{path} would unpack to more than {most_bytes >> 20} MiB, {_MOST_TIMES} times its size; unpack it "
                "and serve the folder, if you trust it"
            )
        found.append(entry)
        if len(found) > _MOST_ENTRIES:
            raise RepositoryError(f"{path} holds more than {_MOST_ENTRIES} files")
    around = next((one.name.parts[:-2] for one in found if one.name.parts[-2:] == _MANIFEST.parts), ())
    if around:
        found = [
            _Entry(PurePosixPath(*one.name.parts[len(around) :]), one.size_bytes, one.open)
            for one in found
            if one.name.parts[: len(around)] == around
        ]
    names = {entry.name for entry in found}
    if len(names) < len(found) or any(parent in names for entry in found for parent in entry.name.parents):
        raise RepositoryError(f"{path} holds two files of one name; pack it anew")
    return found


def unpack_archive(path: Path, fingerprint: str, archives_dir: Path, leases: ExitStack) -> Path:
    """Unpack an archive, unless that has been done, and return its folder.

    Folders of archives that no server holds any more are removed.

    Args:
        fingerprint: Changes when the archive does.
        archives_dir: Where unpacked archives are kept; created if it is missing.
        leases: Receives what keeps the folder from being removed.

    Raises:
        RepositoryError: The archive cannot be unpacked, or is not safe to be.
    """
    key = hashlib.sha256(f"{path.absolute()}\0{fingerprint}".encode(errors="replace")).hexdigest()[:20]
    try:
        private_folder(archives_dir)
        with locked(archives_dir / ".lock"):
            folder = archives_dir / key
            if not folder.is_dir():
                _remove_unused(archives_dir)
                _unpack(path, folder)
            lease = _lease(archives_dir, key)
            lease.touch(mode=0o600)
            leases.callback(os.close, lock_file(lease, shared=True))
    except OSError as error:
        raise RepositoryError(f"{path} cannot be unpacked in {archives_dir}: {error}") from error
    return folder


def _lease(archives_dir: Path, key: str) -> Path:
    return archives_dir / f".{key}.lease"


def _remove_unused(archives_dir: Path) -> None:
    for folder in archives_dir.iterdir():
        if not folder.is_dir():
            continue
        try:
            descriptor = lock_file(_lease(archives_dir, folder.name), wait=False)
        except BlockingIOError:
            # A server serves it.
            continue
        shutil.rmtree(folder, ignore_errors=True)
        _lease(archives_dir, folder.name).unlink(missing_ok=True)
        os.close(descriptor)


def _unpack(path: Path, folder: Path) -> None:
    begun = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(begun, ignore_errors=True)
    with _opened(path) as entries:
        total_bytes = sum(entry.size_bytes for entry in entries)
        free_bytes = shutil.disk_usage(folder.parent).free
        if total_bytes > free_bytes:
            raise RepositoryError(
                f"{path} takes {total_bytes / 1e6:.0f} MB unpacked, and {folder.parent} has room for "
                f"{free_bytes / 1e6:.0f} MB; make room, or choose another --workspace"
            )
        try:
            begun.mkdir(mode=0o700)
            for entry in entries:
                _write(entry, begun / entry.name)
            begun.rename(folder)
        except BaseException:
            shutil.rmtree(begun, ignore_errors=True)
            raise


def _write(entry: _Entry, target: Path) -> None:
    """Write one file, of the length that the archive has said and no longer."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    left_bytes = entry.size_bytes
    with entry.open() as source, target.open("xb") as file:
        while piece := source.read(_COPIED_BYTES):
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise ValueError(f"{entry.name} is longer than the archive says")
            file.write(piece)
    if left_bytes:
        raise ValueError(f"{entry.name} is shorter than the archive says")
