"""Folders for copies under way: whole until they are moved to their place, and gone if that never happens.

models/.staging/ID        a copy
models/.staging/ID.lock   locked by the process that makes it, so that the copies of dead processes can be swept
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from typing import TYPE_CHECKING, Final

from stoker.system.durable import lock_file, locked, private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["staging_folder"]

_STAGING: Final = ".staging"
_LOCK: Final = ".lock"


@contextlib.contextmanager
def staging_folder(models_dir: Path) -> Iterator[Path]:
    """Give a folder on the file system of the registered models that is gone at the end, whatever happens."""
    root = private_folder(models_dir / _STAGING)
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
