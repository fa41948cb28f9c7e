"""A store of files by digest. A tree of files is named by the digest of the list of its files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from stoker.errors import CorruptModel, InvalidSettings
from stoker.system.durable import sync_folder
from stoker_run.trees import files_below

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
    """Return the digest of an open file's content."""
    found = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        found.update(block)
    return PREFIX + found.hexdigest()


def split_address(address: str) -> tuple[str, str]:
    """Return the store and the digest of an address `http://STORE/sha256:DIGEST`."""
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
    """
    found: dict[str, tuple[Path, StoredFile]] = {}
    for path in paths:
        relative = PurePosixPath(path)
        place = base / relative
        if relative.is_absolute() or ".." in relative.parts:
            raise InvalidSettings(
                f"{path} is outside of the folder that becomes the tree; name it relative to that"
            )
        if not place.exists():
            raise InvalidSettings(f"there is no {path} in {base}; name files and folders in it")
        for file in [place] if place.is_file() else sorted(files_below(place)):
            if file.is_file():
                name = file.relative_to(base).as_posix()
                found[name] = file, StoredFile(name, digest_of(file), file.stat().st_size)
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
    """Read such a list. It may come from anywhere: nothing in it leads out of the tree."""
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


OFFSET_HEADER: Final = "Upload-Offset"
"""How many bytes of a file have arrived, or at which its rest begins."""
LENGTH_HEADER: Final = "Upload-Length"
"""How many bytes it has in all."""

_PARTS: Final = "incoming"
_FULL: Final = "the store is full; delete files that no service needs"


def store_app(root: Path, most_bytes: int) -> Starlette:
    """Return the application that keeps files in a folder.

    Args:
        root: The folder; each file is called by its digest, and what has not arrived yet lies in `incoming`.
        most_bytes: Maximum size of all files together.
    """
    (root / _PARTS).mkdir(parents=True, exist_ok=True)
    store = _Store(root, most_bytes)
    return Starlette(
        routes=[
            Route("/healthz", lambda _: PlainTextResponse("ok\n")),
            Route("/{digest}", store.read, methods=["GET", "HEAD"]),
            Route("/{digest}", store.write, methods=["PATCH"]),
        ]
    )


class _Store:
    def __init__(self, root: Path, most_bytes: int) -> None:
        self._root, self._most_bytes = root, most_bytes
        self._written: set[str] = set()

    async def read(self, request: Request) -> Response:
        """Send a file, or the number of bytes that have arrived."""
        digest = request.path_params["digest"]
        if not is_digest(digest):
            return _response(HTTPStatus.NOT_FOUND, "files are named by their digest, sha256:...")
        file = self._root / digest
        if await asyncio.to_thread(file.is_file):
            return FileResponse(file, media_type="application/octet-stream", headers={"ETag": f'"{digest}"'})
        there = await asyncio.to_thread(_size, self._part(digest))
        announced = request.headers.get(LENGTH_HEADER, "0")
        if announced.isdecimal() and await self._is_too_much(int(announced) - there):
            return _response(HTTPStatus.INSUFFICIENT_STORAGE, _FULL)
        return _response(HTTPStatus.NOT_FOUND, f"there is no {digest}", {OFFSET_HEADER: str(there)})

    async def write(self, request: Request) -> Response:
        """Receive the rest of a file from an offset; store the file once it is complete and matches its digest."""
        digest = request.path_params["digest"]
        if not is_digest(digest):
            return _response(HTTPStatus.NOT_FOUND, "files are named by their digest, sha256:...")
        try:
            offset, length = (int(request.headers[name]) for name in (OFFSET_HEADER, LENGTH_HEADER))
        except (KeyError, ValueError):
            return _response(
                HTTPStatus.BAD_REQUEST, f"{OFFSET_HEADER} and {LENGTH_HEADER} have to be numbers"
            )
        if digest in self._written:
            return _response(HTTPStatus.CONFLICT, f"{digest} is being written by another")
        self._written.add(digest)
        try:
            return await self._append(request, digest, offset, length)
        finally:
            self._written.discard(digest)

    async def _append(self, request: Request, digest: str, offset: int, length: int) -> Response:
        part, file = self._part(digest), self._root / digest
        if await asyncio.to_thread(file.is_file):
            return _response(HTTPStatus.OK, f"{digest} is there")
        there = await asyncio.to_thread(_size, part)
        if offset != there:
            return _response(HTTPStatus.CONFLICT, f"{there} bytes have arrived", {OFFSET_HEADER: str(there)})
        if await asyncio.to_thread(_total, self._root) + length - there > self._most_bytes:
            return _response(
                HTTPStatus.INSUFFICIENT_STORAGE, "the store is full; delete files that no service needs"
            )
        try:
            there = await _receive(request, part, there, length)
        except ClientDisconnect:
            return _response(HTTPStatus.BAD_REQUEST, "the rest did not arrive")
        if there < length:
            return _response(HTTPStatus.ACCEPTED, "more is to come", {OFFSET_HEADER: str(there)})
        if there > length or await asyncio.to_thread(digest_of, part) != digest:
            await asyncio.to_thread(part.unlink)
            return _response(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"what has arrived is not {digest}; send it anew"
            )
        await asyncio.to_thread(_keep, part, file)
        return _response(HTTPStatus.CREATED, f"{digest} is there")

    async def _is_too_much(self, more_bytes: int) -> bool:
        return await asyncio.to_thread(_total, self._root) + more_bytes > self._most_bytes

    def _part(self, digest: str) -> Path:
        return self._root / _PARTS / digest


async def _receive(request: Request, part: Path, there: int, length: int) -> int:
    """Append the request's body, up to one byte more than expected; returns the size of the file."""
    with await asyncio.to_thread(part.open, "ab") as target:
        async for block in request.stream():
            await asyncio.to_thread(target.write, block)
            there += len(block)
            if there > length:
                break
    return there


def _keep(part: Path, file: Path) -> None:
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(file)
    sync_folder(file.parent)


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


def _total(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("sha256:*") if file.is_file())


def _response(status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)
