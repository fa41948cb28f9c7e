"""The folders of environments: manifests, locks that serialise builds, and removal of unfinished builds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from stoker.system.durable import lock_file

MANIFEST: Final = "manifest.json"
"""Written last: without it the environment is incomplete and not used."""


def packages_in(site_packages: Path) -> dict[str, str]:
    """The versions of the packages in a folder, by normalised name."""
    found = metadata.distributions(path=[str(site_packages)])
    return dict(sorted((canonicalize_name(package.name), package.version) for package in found))


def digest_of(path: Path) -> str:
    """A digest of a file's content; for a folder, of names, sizes and times, because it may be large."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    stats = [(file, file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
    described = [
        (str(file.relative_to(path)), stat.st_size, stat.st_mtime_ns)
        for file, stat in stats
        if {"__pycache__", ".git"}.isdisjoint(file.parts)
    ]
    return hashlib.sha256(repr(described).encode()).hexdigest()


@contextlib.contextmanager
def build_lock(environments_dir: Path, key: str, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the lock of an environment within the body; yields the lock's descriptor."""
    path = _lock_path(environments_dir, key)
    try:
        lock = lock_file(path, wait=False)
    except BlockingIOError:
        say(f"waiting for another process that builds the environment {key}")
        lock = lock_file(path)
    try:
        yield lock
    finally:
        os.close(lock)


def _lock_path(environments_dir: Path, key: str) -> Path:
    return environments_dir / f".{key}.lock"


def remove_unfinished(environments_dir: Path) -> None:
    """Remove the folders of builds that were killed."""
    for folder in environments_dir.iterdir():
        if not folder.is_dir() or (folder / MANIFEST).exists():
            continue
        with contextlib.suppress(BlockingIOError):
            lock = lock_file(_lock_path(environments_dir, folder.name), wait=False)
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
