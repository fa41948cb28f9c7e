"""A tree of files that is named by its content: the list of its files, which is a file of the store itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from stoker.errors import CorruptModel, InvalidSettings
from stoker_run.trees import files_below

__all__ = [
    "PREFIX",
    "StoredFile",
    "digest_of",
    "digest_of_content",
    "is_digest",
    "listed",
    "read_tree",
    "split_address",
    "tree_text",
]

PREFIX: Final = "sha256:"
"""What digests begin with; the rest are 64 hexadecimal digits."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_BLOCK_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 1 << 44


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a tree.

    Attributes:
        path: Where it is in the tree; relative, without `..`.
        digest: Its digest.
        size_bytes: Its size.
    """

    path: str
    digest: str
    size_bytes: int


def is_digest(text: str) -> bool:
    """Whether this is a digest."""
    return _DIGEST.fullmatch(text) is not None


def digest_of(path: Path) -> str:
    """Return the digest of a file's content."""
    with path.open("rb") as file:
        return digest_of_content(file)


def digest_of_content(file: IO[bytes]) -> str:
    """Return the digest of what an open file holds."""
    found = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        found.update(block)
    return PREFIX + found.hexdigest()


def split_address(address: str) -> tuple[str, str]:
    """Return the store and the digest of an address `http://STORE/sha256:DIGEST`.

    Raises:
        InvalidSettings: It is none.
    """
    base, _, digest = address.rpartition("/")
    if not re.match(r"https?://[!-~]+\Z", base) or not is_digest(digest):
        raise InvalidSettings(
            f"{address} is no address in a store; give it as stoker store push prints it, http://STORE/sha256:DIGEST"
        )
    return base, digest


def listed(paths: Iterable[str], base: Path) -> list[tuple[Path, StoredFile]]:
    """Return the files that these paths name, folders with all that is in them, as a tree would have them.

    Args:
        paths: Files and folders, relative to `base`.
        base: The folder that becomes the root of the tree.

    Raises:
        InvalidSettings: One is outside of `base` or not there, or there is no file.
    """
    found: dict[str, tuple[Path, StoredFile]] = {}
    for said in paths:
        relative = PurePosixPath(said)
        place = base / relative
        if relative.is_absolute() or ".." in relative.parts:
            raise InvalidSettings(
                f"{said} is outside of the folder that becomes the tree; name it relative to that"
            )
        if not place.exists():
            raise InvalidSettings(f"there is no {said} in {base}; name files and folders in it")
        for file in [place] if place.is_file() else sorted(files_below(place)):
            if file.is_file():
                path = file.relative_to(base).as_posix()
                found[path] = file, StoredFile(path, digest_of(file), file.stat().st_size)
    if not found:
        raise InvalidSettings("there is no file in what was named; name a model's files")
    return [found[path] for path in sorted(found)]


def tree_text(files: Iterable[StoredFile]) -> bytes:
    """Return the list of a tree's files: the same files give the same bytes."""
    content = [{"path": file.path, "sha256": file.digest, "bytes": file.size_bytes} for file in files]
    return json.dumps(
        {"files": sorted(content, key=lambda one: str(one["path"]))}, separators=(",", ":")
    ).encode()


def read_tree(text: bytes) -> list[StoredFile]:
    """Read such a list. It may come from anywhere: nothing in it leads out of the tree.

    Raises:
        CorruptModel: It is none.
    """
    try:
        return [_file(item) for item in json.loads(text)["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptModel(f"this is no list of a model's files: {error}") from None


def _file(item: Any) -> StoredFile:
    path, digest, size_bytes = item["path"], item["sha256"], item["bytes"]
    parts = PurePosixPath(path).parts
    if (
        not parts
        or path.startswith("/")
        or ".." in parts
        or "\0" in path
        or PurePosixPath(path).as_posix() != path
    ):
        raise ValueError(f"{path!r} is no path in a tree")
    if not is_digest(digest) or type(size_bytes) is not int or not 0 <= size_bytes <= _MOST_BYTES:
        raise ValueError(f"{path} has no digest and size")
    return StoredFile(path, digest, size_bytes)
