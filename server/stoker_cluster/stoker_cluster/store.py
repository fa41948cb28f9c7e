"""The process `stoker store serve`: files over HTTP that are named by their content.

Reading is a plain `GET /sha256:DIGEST`, which any server of files in such a folder answers as well. Writing goes on
where it was broken off: `HEAD` says how much has arrived, `PATCH` brings the rest.
"""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from stoker.system.durable import sync_folder
from stoker_cluster.store_tree import digest_of, is_digest

__all__ = ["LENGTH_HEADER", "OFFSET_HEADER", "store_app"]

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
        most_bytes: Most that all files may take together.
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
        """Send a file, or say how much of it has arrived."""
        digest = request.path_params["digest"]
        if not is_digest(digest):
            return _said(HTTPStatus.NOT_FOUND, "files are named by their digest, sha256:...")
        file = self._root / digest
        if await asyncio.to_thread(file.is_file):
            return FileResponse(file, media_type="application/octet-stream", headers={"ETag": f'"{digest}"'})
        there = await asyncio.to_thread(_size, self._part(digest))
        announced = request.headers.get(LENGTH_HEADER, "0")
        if announced.isdecimal() and await self._is_too_much(int(announced) - there):
            return _said(HTTPStatus.INSUFFICIENT_STORAGE, _FULL)
        return _said(HTTPStatus.NOT_FOUND, f"there is no {digest}", {OFFSET_HEADER: str(there)})

    async def write(self, request: Request) -> Response:
        """Take the rest of a file, from where it was broken off; it is there once it is whole and what it says."""
        digest = request.path_params["digest"]
        if not is_digest(digest):
            return _said(HTTPStatus.NOT_FOUND, "files are named by their digest, sha256:...")
        try:
            offset, length = (int(request.headers[name]) for name in (OFFSET_HEADER, LENGTH_HEADER))
        except (KeyError, ValueError):
            return _said(HTTPStatus.BAD_REQUEST, f"{OFFSET_HEADER} and {LENGTH_HEADER} have to be numbers")
        if digest in self._written:
            return _said(HTTPStatus.CONFLICT, f"{digest} is being written by another")
        self._written.add(digest)
        try:
            return await self._append(request, digest, offset, length)
        finally:
            self._written.discard(digest)

    async def _append(self, request: Request, digest: str, offset: int, length: int) -> Response:
        part, file = self._part(digest), self._root / digest
        if await asyncio.to_thread(file.is_file):
            return _said(HTTPStatus.OK, f"{digest} is there")
        there = await asyncio.to_thread(_size, part)
        if offset != there:
            return _said(HTTPStatus.CONFLICT, f"{there} bytes have arrived", {OFFSET_HEADER: str(there)})
        if await asyncio.to_thread(_total, self._root) + length - there > self._most_bytes:
            return _said(
                HTTPStatus.INSUFFICIENT_STORAGE, "the store is full; delete files that no service needs"
            )
        try:
            there = await _receive(request, part, there, length)
        except ClientDisconnect:
            return _said(HTTPStatus.BAD_REQUEST, "the rest did not arrive")
        if there < length:
            return _said(HTTPStatus.ACCEPTED, "more is to come", {OFFSET_HEADER: str(there)})
        if there > length or await asyncio.to_thread(digest_of, part) != digest:
            await asyncio.to_thread(part.unlink)
            return _said(HTTPStatus.UNPROCESSABLE_ENTITY, f"what has arrived is not {digest}; send it anew")
        await asyncio.to_thread(_keep, part, file)
        return _said(HTTPStatus.CREATED, f"{digest} is there")

    async def _is_too_much(self, more_bytes: int) -> bool:
        return await asyncio.to_thread(_total, self._root) + more_bytes > self._most_bytes

    def _part(self, digest: str) -> Path:
        return self._root / _PARTS / digest


async def _receive(request: Request, part: Path, there: int, length: int) -> int:
    """Append what comes, up to a byte more than there should be; returns how much there is then."""
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


def _said(status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)
