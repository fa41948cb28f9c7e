"""Files that a crash leaves whole: private folders, atomic replacement, locks that die with their process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["lock_file", "locked", "private_folder", "replace_file", "sync_folder"]


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an error of the system name the file that was meant: calls by descriptor name none."""
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
    """Write the folder's own entries to the disk, so that a finished rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Put a file with this content at `path`: readers see the old content or the new, never a part.

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


def lock_file(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Take a flock on the file and return the descriptor that holds it; closing it gives the lock back.

    The kernel gives the lock back when the process dies, however it dies. The file has to exist for a
    shared lock (it may lie on a read-only file system) and is created for an exclusive one.

    Raises:
        BlockingIOError: `wait` is off and somebody else holds the lock.
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
    """Hold the exclusive flock on the file `path` in the body, after waiting for it."""
    descriptor = lock_file(path)
    try:
        yield
    finally:
        os.close(descriptor)
