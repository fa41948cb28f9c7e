"""Files that survive a crash whole: private folders, atomic replacement, locks of a process, staged copies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import signal
import stat
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK_BYTES)
_PATIENCE_S: Final = 1.0
_RETRY_S: Final = 0.02

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Set the file name in errors of the system: calls by descriptor name none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def private_folder(folder: Path) -> Path:
    """Create `folder` and its missing parents for the owner alone (mode 0700); keep those that exist."""
    if not folder.is_dir():
        private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    return folder


def sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk, so that a finished rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file atomically: readers see the old content or the new, never a part.

    Raises:
        OSError: It cannot be written; `filename` is `path`.
    """
    staged = path.with_name(f".{path.name}.{os.urandom(16).hex()}")
    with _naming(path):
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            staged.rename(path)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file or of a link to one, without blocking on FIFOs or reading endless devices.

    Raises:
        OSError: The file does not exist, is not regular (EINVAL), is longer than `most_bytes` (EFBIG), or cannot be
            read.
    """
    descriptor, facts = _open_regular(path)
    with _naming(path), os.fdopen(descriptor, "rb") as file:
        content = b"" if facts.st_size > most_bytes else file.read(most_bytes + 1)
        if max(facts.st_size, len(content)) > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
        return content


def _open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, without waiting for a FIFO; returns its descriptor and status."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode):
        return descriptor, facts
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


@dataclass(frozen=True, slots=True)
class Copied:
    """A finished copy of a file.

    Attributes:
        sha256: SHA-256 of the copy, in hexadecimal digits.
        executable: Whether the owner of the source may execute it.
        changed: Whether the source changed meanwhile, so that the copy may be inconsistent.
    """

    sha256: str
    size_bytes: int
    executable: bool
    changed: bool


def copy_regular(
    source: Path,
    target: Path,
    progress: Callable[[int], object] | None = None,
    *,
    mode: int = 0o400,
    sync: bool = True,
) -> Copied:
    """Copy a regular file to a new one.

    No more is copied than there is at the beginning, so a growing file cannot fill the disk. Holes of a sparse file
    stay holes.

    Args:
        source: The file; links are followed.
        progress: Called with the bytes copied so far.
        mode: Who may read the copy; they may also execute it, if the owner of the source may.

    Raises:
        OSError: The source is not a regular file (EINVAL), or one of both cannot be read or written.
    """
    digest, done = hashlib.sha256(), 0
    reader, before = _open_regular(source)
    with os.fdopen(reader, "rb", buffering=0) as file, target.open("xb", buffering=0) as copy:
        sparse = before.st_blocks * 512 < before.st_size
        while done < before.st_size and (chunk := file.read(min(_CHUNK_BYTES, before.st_size - done))):
            digest.update(chunk)
            if sparse and chunk == _ZEROS[: len(chunk)]:
                copy.seek(len(chunk), os.SEEK_CUR)
            else:
                write_all(copy.fileno(), chunk)
            done += len(chunk)
            if progress is not None:
                progress(done)
        copy.truncate(done)
        after = os.fstat(reader)
        executable = bool(before.st_mode & stat.S_IXUSR)
        os.fchmod(copy.fileno(), mode | mode >> 2 if executable else mode)
        if sync:
            os.fsync(copy.fileno())
    unchanged = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    return Copied(digest.hexdigest(), done, executable, not unchanged or done < before.st_size)


def write_all(descriptor: int, content: bytes) -> None:
    """Write to an open file, which may take only a part at once."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def lock_file(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Acquire a flock on a file and return the descriptor that holds it; closing the descriptor releases the lock.

    The kernel releases the lock when the process dies, however it dies. For a shared lock the file has to exist (it
    may be on a read-only file system); for an exclusive one it is created.

    Raises:
        BlockingIOError: `wait` is False and another process holds the lock.
    """
    # Network file systems grant an exclusive flock only on a descriptor that may write.
    flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        with _naming(path):
            fcntl.flock(descriptor, operation if wait else operation | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive flock on a file during the block, after waiting for it.

    If that takes longer than a second, a warning names the process that holds it.
    """
    descriptor = _wait_for_lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(path: Path) -> int:
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        try:
            return lock_file(path, wait=False)
        except BlockingIOError:
            time.sleep(_RETRY_S)
    holder = find_lock_holder(path)
    owner = "another process holds" if holder is None else f"the process {holder} holds"
    _log.warning("waiting for %s, which %s; end that process if it hangs", path, owner)
    return lock_file(path)


def find_lock_holder(path: Path) -> int | None:
    """Return the process that holds a flock on a file; None if the system does not tell."""
    try:
        inode = path.stat().st_ino
        with open("/proc/locks", encoding="ascii") as locks:  # noqa: PTH123
            # 1: FLOCK ADVISORY WRITE 1234 fd:00:5678 0 EOF; waiting processes have an arrow before the kind.
            fields = [line.split() for line in locks]
    except OSError:
        return None
    for _, kind, _, _, holder, file, *_ in fields:
        if kind == "FLOCK" and file.rpartition(":")[2] == str(inode) and int(holder) > 0:
            return int(holder)
    return None


_STAGING: Final = ".staging"
_STAGING_LOCK: Final = ".lock"
_SIGTERM_EXIT_CODE: Final = 128 + signal.SIGTERM
"""The exit code that a shell reports for SIGTERM."""


@contextlib.contextmanager
def staging_folder(place: Path) -> Iterator[Path]:
    """Create a folder beside `place` for a copy under way, and remove it at the end, even after SIGTERM.

    The copy is moved to its place when it is whole. `.staging/ID.lock` is locked by the process that makes
    `.staging/ID`, so that the copies of dead processes can be removed.
    """
    # Here, because frontends import this module and need nothing of this.
    from stoker_base.trees import remove_tree

    root = private_folder(place / _STAGING)
    folder = root / uuid.uuid4().hex
    owner_path = folder.with_suffix(_STAGING_LOCK)
    with locked(root / _STAGING_LOCK):
        _sweep(root)
        owner = lock_file(owner_path)
        folder.mkdir(mode=0o700)
    try:
        with _exit_on_sigterm():
            yield folder
    finally:
        remove_tree(folder, ignore_errors=True)
        owner_path.unlink(missing_ok=True)
        os.close(owner)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Exit on SIGTERM as on Ctrl-C, unless the program handles SIGTERM itself."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_SIGTERM_EXIT_CODE))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _sweep(staging: Path) -> None:
    """Remove the copies of dead processes; the caller holds the lock under which folders are created."""
    from stoker_base.trees import remove_tree

    for name in {entry.stem for entry in staging.iterdir() if entry.name != _STAGING_LOCK}:
        owner_path = staging / f"{name}{_STAGING_LOCK}"
        try:
            owner = lock_file(owner_path, wait=False)
        except BlockingIOError:
            continue
        remove_tree(staging / name, ignore_errors=True)
        owner_path.unlink(missing_ok=True)
        os.close(owner)
