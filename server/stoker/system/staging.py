"""Folders for copies under way: whole until they are moved to their place, and gone if that never happens.

.staging/ID        a copy
.staging/ID.lock   locked by the process that makes it, so that the copies of dead processes can be swept
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Final

from stoker.system.durable import lock_file, locked, private_folder
from stoker_run.trees import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["staging_folder"]

_STAGING: Final = ".staging"
_LOCK: Final = ".lock"
_ENDED: Final = 128 + signal.SIGTERM
"""What a shell says of a process that SIGTERM has ended."""


@contextlib.contextmanager
def staging_folder(place: Path) -> Iterator[Path]:
    """Give a folder on the file system of `place` that is gone at the end, whatever happens, SIGTERM included."""
    root = private_folder(place / _STAGING)
    folder = root / uuid.uuid4().hex
    owner_path = folder.with_suffix(_LOCK)
    with locked(root / _LOCK):
        _sweep(root)
        owner = lock_file(owner_path)
        folder.mkdir(mode=0o700)
    try:
        with _ending_in_order():
            yield folder
    finally:
        remove_tree(folder, ignore_errors=True)
        owner_path.unlink(missing_ok=True)
        os.close(owner)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Leave at SIGTERM as at Ctrl-C, unless the program has decided what it does then."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _sweep(staging: Path) -> None:
    """Remove what dead processes left; the caller holds the lock under which folders are created."""
    for name in {entry.stem for entry in staging.iterdir() if entry.name != _LOCK}:
        owner_path = staging / f"{name}{_LOCK}"
        try:
            owner = lock_file(owner_path, wait=False)
        except BlockingIOError:
            continue
        remove_tree(staging / name, ignore_errors=True)
        owner_path.unlink(missing_ok=True)
        os.close(owner)
