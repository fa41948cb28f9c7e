"""Folders that go to a machine: contents that it has already stay here."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.targets.engine import EngineFailure, Job, Say
from stoker_runs.targets.ssh.porter import Porter, Request

__all__ = ["Tree", "have_folder", "listed"]

_PIECE_BYTES: Final = 1 << 20
_WORD_S: Final = 20.0
_SAID_FROM_BYTES: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Tree:
    """What a folder is made of.

    Attributes:
        digest: What it is known by.
        entries: As the porter wants them: `["d", name]`, `["l", name, target]`, `["f", name, content]`.
        paths: Where each content is here.
    """

    digest: str
    entries: list[list[str]]
    paths: dict[str, Path]


def listed(folder: Path) -> Tree:
    """Read a folder; links are kept as links.

    Raises:
        EngineFailure: A file cannot be read.
    """
    entries: list[list[str]] = []
    paths: dict[str, Path] = {}
    try:
        ahead = [folder]
        while ahead:
            for path in sorted(ahead.pop().iterdir()):
                inner = path.relative_to(folder).as_posix()
                if path.is_symlink():
                    entries.append(["l", inner, str(path.readlink())])
                elif path.is_dir():
                    entries.append(["d", inner])
                    ahead.append(path)
                elif path.is_file():
                    content = _content(path)
                    entries.append(["f", inner, content])
                    paths[content] = path
    except OSError as error:
        raise _unreadable(error) from error
    digest = hashlib.sha256(json.dumps(sorted(entries)).encode("ascii")).hexdigest()[:32]
    return Tree(digest, entries, paths)


def _content(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        executable = os.fstat(file.fileno()).st_mode & stat.S_IXUSR
    return digest + (".x" if executable else "")


async def have_folder(porter: Porter, job: Job, folder: Path, name: str, say: Say, digest: str = "") -> None:
    """Have a copy of a folder among an attempt's files on the machine.

    Args:
        porter: Of the machine.
        job: The attempt.
        folder: The folder here.
        name: What the copy is called there.
        say: Is told when much is sent.
        digest: What the folder is known by, if something is; then it is not read where the machine knows it too.

    Raises:
        EngineFailure: It cannot be read here or written there.
    """
    ids = {"run": job.record.id, "attempt": job.attempt}
    if digest:
        said, _ = await porter.ask(op="restore", tree=digest, name=name, **ids)
        if said["done"]:
            return
    tree = await _listed(porter, folder)
    known_by = digest or tree.digest
    said, _ = await porter.ask(json.dumps(tree.entries).encode("ascii"), op="tree", tree=known_by)
    missing: list[tuple[str, int]] = [(content, there) for content, there in said["missing"]]
    size_bytes = sum(tree.paths[content].stat().st_size - there for content, there in missing)
    if size_bytes > _SAID_FROM_BYTES:
        say(f"sending {len(missing)} files, {size_bytes / 1e6:.0f} MB")
    async for _ in porter.exchange(_pieces(tree, missing)):
        pass
    said, _ = await porter.ask(op="restore", tree=known_by, name=name, **ids)
    if not said["done"]:
        raise EngineFailure(
            RunFailure(
                FailureCode.INTERNAL, f"{folder} has changed while it was sent", "submit the script again"
            )
        )


async def _listed(porter: Porter, folder: Path) -> Tree:
    """Read a folder beside the connection; the porter is not left without a word for so long that it ends."""
    reading = asyncio.ensure_future(asyncio.to_thread(listed, folder))
    while not (await asyncio.wait({reading}, timeout=_WORD_S))[0]:
        await porter.ask(op="ping")
    return reading.result()


def _pieces(tree: Tree, missing: list[tuple[str, int]]) -> Iterator[Request]:
    """Contents piece by piece, each from where it had come to before a cut."""
    for content, there in missing:
        try:
            with tree.paths[content].open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                offset = there if there < size else 0
                file.seek(offset)
                while True:
                    data = file.read(_PIECE_BYTES)
                    request: dict[str, Any] = {
                        "op": "keep",
                        "content": content,
                        "offset": offset,
                        "size": size,
                    }
                    yield request, data
                    offset += len(data)
                    if not data or offset >= size:
                        break
        except OSError as error:
            raise _unreadable(error) from error


def _unreadable(error: OSError) -> EngineFailure:
    message = f"{error.filename} cannot be read: {error.strerror}"
    return EngineFailure(RunFailure(FailureCode.TARGET_UNUSABLE, message))
