"""Digests of input data, by which runs show whether they read the same data."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from stoker.errors import SubmissionRefused
from stoker.system.durable import private_folder
from stoker_run.trees import files_below
from stoker_runs.records.seen_files import SeenFiles

__all__ = ["data_digests", "measure_data"]

_LARGE_BYTES: Final = 1 << 28
_SAMPLE_BYTES: Final = 1 << 20


def data_digests(inputs: Mapping[str, str], kept: Path) -> dict[str, str]:
    """Return a digest of each input: of its files' names and contents.

    Files over 256 MB are identified by size, time, and their first and last MB, because reading them would take too
    long for a submission. Unchanged files are not read again.

    Args:
        inputs: Path of each input, a file or a folder, by name.
        kept: The file that caches digests.

    Raises:
        SubmissionRefused: A path does not exist, or cannot be read.
    """
    if not inputs:
        return {}
    private_folder(kept.parent)
    seen = SeenFiles(kept)
    try:
        digests = {name: _digest(Path(path), seen) for name, path in inputs.items()}
    except OSError as error:
        raise SubmissionRefused(f"the data {error.filename} cannot be read: {error.strerror}") from error
    seen.write()
    return digests


def measure_data(path: Path) -> tuple[int, int]:
    """Return the number of files of an input, and their size in bytes."""
    sizes = [file.stat().st_size for _, file in _files(path)]
    return len(sizes), sum(sizes)


def _digest(path: Path, seen: SeenFiles) -> str:
    listing = hashlib.sha256()
    for name, file in _files(path):
        facts = file.stat()
        content = seen.digest_of(facts)
        if content is None:
            content = _content(file, facts)
            seen.remember(facts, content)
        listing.update(f"{name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return listing.hexdigest()[:32]


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if not path.is_dir():
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is neither a file nor a folder", str(path))
        yield path.name, path
        return
    for file in sorted(files_below(path)):
        if file.is_file():
            yield file.relative_to(path).as_posix(), file


def _content(file: Path, facts: os.stat_result) -> str:
    with file.open("rb") as source:
        if facts.st_size <= _LARGE_BYTES:
            return hashlib.file_digest(source, "sha256").hexdigest()
        digest = hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns}".encode())
        digest.update(source.read(_SAMPLE_BYTES))
        source.seek(-_SAMPLE_BYTES, os.SEEK_END)
        digest.update(source.read(_SAMPLE_BYTES))
    return digest.hexdigest()
