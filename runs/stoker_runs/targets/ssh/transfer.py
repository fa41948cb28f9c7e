"""Files to a machine and back: the machine keeps contents, so that each is sent once; logs are read on by offset.

attempts/N/…             the attempt's files as the agent writes them, by the names that they have there
attempts/N/incoming/…    files that are on their way, by digests of their names, and the folders that are made of them
attempts/N/collected     which folders have come, a line each; `all` when nothing is left to come
"""

from __future__ import annotations

import asyncio
import errno
import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.errors import cut, quoted
from stoker.models.mirrors import CACHE_VARIABLE, cache_limit_bytes
from stoker.system.durable import private_folder, replace_file
from stoker.system.wording import format_count
from stoker_base.trees import Tree, parts_of, remove_tree
from stoker_runs.records.snapshots import data_digests, data_files, data_seen
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.engine import EngineFailure, Job, Say
from stoker_runs.targets.local import RUN_FOLDERS, as_failure
from stoker_runs.targets.porter import Porter, Request

_WORD_S: Final = 20.0
_SAID_FROM_BYTES: Final = 10_000_000
_TRIES: Final = 3


class FolderListing(Struct, frozen=True):
    """The entries and contents of a folder.

    Attributes:
        entries: As the porter wants them: `["d", name]`, `["l", name, target]`, `["f", name, content]`.
        paths: The file of each content on this machine.
    """

    digest: str
    entries: list[list[str]]
    paths: dict[str, Path]


def list_folder(folder: Path) -> FolderListing:
    """List a folder; links stay links."""
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
    return FolderListing(digest, entries, paths)


def _content(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        executable = os.fstat(file.fileno()).st_mode & stat.S_IXUSR
    return digest + (".x" if executable else "")


def list_data(path: Path) -> FolderListing:
    """List the files of an input, a file or a folder, as its digest has them: what links lead to, no links."""
    entries: list[list[str]] = []
    paths: dict[str, Path] = {}
    try:
        for name, file in data_files(path):
            content = _content(file).partition(".")[0]
            entries.append(["f", name, content])
            paths[content] = file
    except OSError as error:
        raise _unreadable(error) from error
    digest = hashlib.sha256(json.dumps(entries).encode("ascii")).hexdigest()[:32]
    return FolderListing(digest, entries, paths)


async def send_folder(porter: Porter, job: Job, folder: Path, name: str, say: Say, digest: str = "") -> None:
    """Copy a folder to an attempt's files on the machine.

    Args:
        digest: The folder's digest, if known: a folder that the machine has is then not read.
    """
    transfer = _Transfer(porter, job, name, say)
    if digest and await transfer.restore(digest):
        return
    tree = await transfer.list(list_folder, folder)
    await transfer.send(tree, digest or tree.digest)
    if not await transfer.restore(digest or tree.digest):
        raise EngineFailure(
            f"{folder} has changed while it was sent", "submit the script again", code=FailureCode.INTERNAL
        )


async def send_data(porter: Porter, job: Job, name: str, say: Say) -> str:
    """Bring an input to the machine, as a read-only folder `inputs/NAME`; return the path of it, or of its only file.

    The machine keeps the contents for other runs, within the limit of the cache. What it has is not read here.

    Raises:
        EngineFailure: It has changed since the submission, or does not fit the limit.
    """
    path, digest = Path(job.record.definition.inputs[name]), job.record.data.get(name, "")
    transfer = _Transfer(porter, job, f"inputs/{name}", say, is_data=True)
    place = f"inputs/{name}{await asyncio.to_thread(_name_inside, path)}"
    if digest and await transfer.restore(digest):
        return place
    tree = await transfer.list(list_data, path)
    now = await asyncio.to_thread(data_digests, {name: str(path)}, data_seen(job.snapshots_dir))
    if now[name] != (digest or now[name]):
        raise EngineFailure(
            f"the input {name}, {path}, has changed since the run was submitted",
            "submit the script again",
            code=FailureCode.INPUT_CHANGED,
        )
    for _ in range(_TRIES):
        await transfer.send(tree, now[name])
        if await transfer.restore(now[name]):
            return place
    raise EngineFailure(
        f"the data of other runs takes the room of the input {name} on the machine again and again",
        f"allow more by {CACHE_VARIABLE}",
    )


def _name_inside(path: Path) -> str:
    """Return `/NAME` for an input that is a file: its digest and tree are those of a folder with it."""
    if not path.exists():
        raise _unreadable(FileNotFoundError(errno.ENOENT, "it is not there any more", str(path)))
    return f"/{path.name}" if path.is_file() else ""


class _Transfer(Struct, frozen=True):
    """A folder on its way to an attempt's files on the machine.

    Attributes:
        is_data: Whether the machine keeps its contents within a limit and links them, read-only.
    """

    porter: Porter
    job: Job
    name: str
    say: Say
    is_data: bool = False

    async def restore(self, digest: str) -> bool:
        """Make the folder of what the machine has; return whether it has all."""
        ids = {"run": self.job.record.id, "attempt": self.job.attempt}
        reply, _ = await self.porter.ask(
            op="restore", tree=digest, name=self.name, shared=self.is_data, **ids
        )
        return bool(reply["done"])

    async def list(self, read: Callable[[Path], FolderListing], folder: Path) -> FolderListing:
        """List a folder on a thread, and keep the porter from ending meanwhile."""
        reading = asyncio.ensure_future(asyncio.to_thread(read, folder))
        while not (await asyncio.wait({reading}, timeout=_WORD_S))[0]:
            await self.porter.ask(op="ping")
        return reading.result()

    async def send(self, tree: FolderListing, digest: str) -> None:
        """Send the contents that the machine lacks, each from where an earlier transfer stopped."""
        limits: dict[str, Any] = {}
        if self.is_data:
            size_bytes = sum(path.stat().st_size for path in tree.paths.values())
            limits = {"size_bytes": size_bytes, "limit_bytes": cache_limit_bytes()}
        reply, _ = await self.porter.ask(
            json.dumps(tree.entries).encode("ascii"), op="tree", tree=digest, **limits
        )
        if not reply["has_room"]:
            raise EngineFailure(
                f"{self.name} takes {limits['size_bytes'] / 1e9:.1f} GB, and with the data in use there are "
                f"{limits['limit_bytes'] / 1e9:.1f} GB for files of runs on {self.porter.host}",
                f"allow more by {CACHE_VARIABLE}",
            )
        missing: list[tuple[str, int]] = [(content, there) for content, there in reply["missing"]]
        size_bytes = sum(tree.paths[content].stat().st_size - there for content, there in missing)
        if size_bytes > _SAID_FROM_BYTES:
            self.say(f"sending {format_count(len(missing), 'file')}, {size_bytes / 1e6:.0f} MB")
        async for _ in self.porter.exchange(_pieces(tree, missing)):
            pass


def _pieces(tree: FolderListing, missing: list[tuple[str, int]]) -> Iterator[Request]:
    """Yield contents in pieces, each from the offset that the machine already has."""
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
    return EngineFailure(f"{error.filename} cannot be read: {error.strerror}")


_GROWING: Final = re.compile(
    r"log_[0-9]+\.txt|metrics\.jsonl|events\.jsonl|process_info\.json|process_status\.json|agent\.log",
    re.ASCII,
)
_PIECE_BYTES: Final = 1 << 20
_FOLDERS: Final = {"files": "files", "children": "children", "work/outputs": "outputs", "work/logs": "logs"}
local_errors: Final = functools.partial(as_failure, "the run's files cannot be written here")
"""Turns errors of this machine into failures."""


async def poll_attempt(
    porter: Porter, job: Job, renewal: int | None = None
) -> tuple[Mapping[str, Any], bool]:
    """Return the state of an attempt, and append its new log lines.

    Args:
        renewal: A new number, which renews the attempt's lease.

    Returns:
        What `stoker_run.observing.observe` says there, and whether there is more to come of what it has seen.
    """
    offsets = {
        path.name: path.stat().st_size for path in job.place.iterdir() if _GROWING.fullmatch(path.name)
    }
    reply, data = await porter.ask(
        op="poll", run=job.record.id, attempt=job.attempt, offsets=offsets, renewal=renewal
    )
    seen = reply["seen"]
    with local_errors():
        for name, offset, length in reply["chunks"]:
            chunk, data = data[:length], data[length:]
            if _GROWING.fullmatch(name) and offset == offsets.get(name, 0):
                _append(job.place / name, chunk, offset)
                offsets[name] = offset + length
        for name in ("agent", "heartbeat"):
            if seen[name] is not None:
                _replace(job.place / f"{name}.json", seen[name])
    return seen, any(size > offsets.get(name, 0) for name, size in seen["sizes"].items())


def is_collected(job: Job) -> bool:
    """Whether all files of an attempt have been collected."""
    return "all" in _collected(job)


async def collect(porter: Porter, job: Job) -> None:
    """Copy all files of an ended attempt; a later call continues where this one stopped."""
    more = True
    while more:
        seen, more = await poll_attempt(porter, job)
    _, data = await porter.ask(op="list", run=job.record.id, attempt=job.attempt, names=list(_FOLDERS))
    listing: dict[str, list[list[Any]]] = json.loads(data)
    for there, here in _FOLDERS.items():
        if here in _collected(job) or not (listing[there] or here in RUN_FOLDERS):
            continue
        incoming = await _fetch(porter, job, there, checked_entries(listing[there]), here)
        with local_errors():
            place = (job.folder.path if here in RUN_FOLDERS else job.place) / here
            _install_folder(incoming, place, keep=seen["agent"] is None)
            _record_collected(job, here)
    with local_errors():
        remove_tree(job.place / "incoming", ignore_errors=True)
        if seen["exit"] is not None:
            _replace(job.place / "exit.json", seen["exit"])
        _record_collected(job, "all")


async def _fetch(porter: Porter, job: Job, there: str, entries: Sequence[Sequence[Any]], here: str) -> Path:
    """Copy a folder; parts of files that were copied before are reused."""
    files = [(f"{there}/{entry[1]}", int(entry[2])) for entry in entries if entry[0] == "f"]
    pieces: list[tuple[Path, int]] = []
    with local_errors():
        parts = private_folder(job.place / "incoming" / f"{here}.parts")

    def requests() -> Iterator[Request]:
        for name, size in files:
            with local_errors():
                part = _part_of(parts, name)
                come = part.stat().st_size if part.exists() else -1
                if come > size:
                    part.unlink()
                    come = -1
            for offset in (
                range(come, size, _PIECE_BYTES) if come > 0 else range(0, max(1, size), _PIECE_BYTES)
            ):
                pieces.append((part, offset))
                length = min(_PIECE_BYTES, size - offset)
                ids = {"run": job.record.id, "attempt": job.attempt}
                yield {"op": "read", "name": name, "offset": offset, "size": length, **ids}, b""

    async for _, data in porter.exchange(requests()):
        part, offset = pieces.pop(0)
        with local_errors():
            _append(part, data, offset)
    with local_errors():
        for name, size in files:
            if _part_of(parts, name).stat().st_size != size:
                raise _refused(f"{name} has not come whole: its length has changed meanwhile")
        return _put_together(entries, there, parts, job.place / "incoming" / here)


def _part_of(parts: Path, name: str) -> Path:
    """Return where a file is kept until all have come: no name of a listing is on the way to it."""
    return parts / hashlib.sha256(os.fsencode(name)).hexdigest()


def _put_together(entries: Sequence[Sequence[Any]], there: str, parts: Path, folder: Path) -> Path:
    """Make a folder of the files that have come."""
    remove_tree(folder)
    folder.mkdir(mode=0o700)
    tree = Tree(folder)
    for kind, name, *rest in entries:
        if kind == "d":
            tree.make_folder(name)
        elif kind == "l":
            tree.make_link(name, rest[0])
        else:
            part = _part_of(parts, f"{there}/{name}")
            part.chmod(0o700 if rest[1] else 0o600)
            Tree(parts).move(part.name, tree, name)
    return folder


def checked_entries(entries: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return the entries of a folder after checking that none leads out of it: the machine is not trusted.

    Raises:
        EngineFailure: One does, one is named twice, or one is no entry.
    """
    kinds: dict[tuple[str, ...], str] = {}
    for entry in entries:
        kind, parts = _checked(entry)
        if parts in kinds:
            raise _refused(f"the machine has sent a name twice: {quoted(entry[1])}")
        kinds[parts] = kind
    last: tuple[str, ...] | None = None
    # In this order, what lies behind a name comes right after it. A look at all folders above each name would take
    # minutes for a name of very many parts.
    for parts in sorted(kinds):
        if last is not None and parts[: len(last)] == last:
            raise _refused(f"the machine has sent a file behind a link or a file: {quoted('/'.join(parts))}")
        if kinds[parts] != "d":
            last = parts
    return entries


def _checked(entry: Any) -> tuple[str, tuple[str, ...]]:
    """Return the kind of an entry and the parts of its name."""
    match entry:
        case ["d", str(name)]:
            texts = [name]
        case ["l", str(name), str(target)] if target and "\0" not in target:
            texts = [name, target]
        case ["f", str(name), int(size), bool()] if size >= 0:
            texts = [name]
        case _:
            raise _refused(f"the machine has sent {cut(repr(entry))}, which is no file, folder or link")
    try:
        for text in texts:
            # A text that no system has as a name.
            os.fsencode(text)
        return entry[0], parts_of(name)
    except ValueError:
        raise _refused(f"the machine has sent a name {quoted(name)}") from None


def _refused(message: str) -> EngineFailure:
    return EngineFailure(message)


def _install_folder(incoming: Path, place: Path, *, keep: bool) -> None:
    """Replace a folder by the copied one."""
    if keep:
        # It never began.
        remove_tree(incoming)
        return
    before = incoming.parent / f"{place.name}.before"
    if os.path.lexists(place):
        remove_tree(before, ignore_errors=True)
        place.rename(before)
    incoming.rename(place)
    remove_tree(before, ignore_errors=True)


def _collected(job: Job) -> list[str]:
    try:
        return (job.place / "collected").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return []


def _record_collected(job: Job, name: str) -> None:
    replace_file(job.place / "collected", "\n".join([*_collected(job), name, ""]).encode("ascii"))


def _append(path: Path, data: bytes, offset: int) -> None:
    """Write data at an offset of a file; a link is not followed."""
    _write_at(Tree(path.parent).open(path.name, os.O_WRONLY | os.O_CREAT), data, offset)


def _write_at(file: int, data: bytes, offset: int) -> None:
    """Write to a descriptor, and close it."""
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(file, view, offset)
            offset, view = offset + written, view[written:]
    finally:
        os.close(file)


def _replace(path: Path, content: Any) -> None:
    data = json.dumps(content).encode("ascii") + b"\n"
    if not path.exists() or path.read_bytes() != data:
        replace_file(path, data)
