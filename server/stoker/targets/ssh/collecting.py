"""Files that come back from a machine: what grows by offset, the rest when nothing of an attempt runs any more.

attempts/N/…             the attempt's files as the agent writes them, by the names that they have there
attempts/N/incoming/…    folders that are on their way; a cut or a killed runner loses nothing of them
attempts/N/collected     which folders have come, a line each; `all` when nothing is left to come
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stoker.runs.failures import FailureCode, RunFailure
from stoker.system.durable import private_folder, replace_file
from stoker.targets.engine import EngineFailure, Job
from stoker.targets.ssh.porter import Porter, Request

__all__ = ["checked_entries", "collect", "is_collected", "locally", "looked"]

_GROWING: Final = re.compile(
    r"log_[0-9]+\.txt|metrics\.jsonl|events\.jsonl|process_info\.json|process_status\.json|agent\.log",
    re.ASCII,
)
_PIECE_BYTES: Final = 1 << 20
_FOLDERS: Final = {"files": "files", "children": "children", "work/outputs": "outputs", "work/logs": "logs"}
_OF_THE_RUN: Final = ("outputs", "logs")


async def looked(porter: Porter, job: Job, renewal: int | None = None) -> tuple[Mapping[str, Any], bool]:
    """See how an attempt is, and append what is new of its logs and lines.

    Args:
        porter: Of the machine.
        job: The attempt.
        renewal: Renews its lease; another number than before.

    Returns:
        What `stoker_run.observing.observe` says there, and whether there is more to come of what it has seen.

    Raises:
        EngineFailure: It cannot be written here.
    """
    offsets = {
        path.name: path.stat().st_size for path in job.place.iterdir() if _GROWING.fullmatch(path.name)
    }
    said, data = await porter.ask(
        op="look", run=job.record.id, attempt=job.attempt, offsets=offsets, renewal=renewal
    )
    seen = said["seen"]
    with locally():
        for name, offset, length in said["chunks"]:
            chunk, data = data[:length], data[length:]
            if _GROWING.fullmatch(name) and offset == offsets.get(name, 0):
                _append(job.place / name, chunk, offset)
                offsets[name] = offset + length
        for name in ("agent", "heartbeat"):
            if seen[name] is not None:
                _replace(job.place / f"{name}.json", seen[name])
    return seen, any(size > offsets.get(name, 0) for name, size in seen["sizes"].items())


def is_collected(job: Job) -> bool:
    """Whether nothing of an attempt is left to come."""
    return "all" in _collected(job)


async def collect(porter: Porter, job: Job) -> None:
    """Bring all files of an attempt of which nothing runs any more; begun anew, it goes on where it stopped.

    Raises:
        EngineFailure: They cannot be written here.
    """
    more = True
    while more:
        seen, more = await looked(porter, job)
    _, data = await porter.ask(op="list", run=job.record.id, attempt=job.attempt, names=list(_FOLDERS))
    listing: dict[str, list[list[Any]]] = json.loads(data)
    for there, here in _FOLDERS.items():
        if here in _collected(job) or not (listing[there] or here in _OF_THE_RUN):
            continue
        incoming = job.place / "incoming" / here
        await _fetch(porter, job, there, checked_entries(listing[there]), incoming)
        with locally():
            place = (job.folder.path if here in _OF_THE_RUN else job.place) / here
            _put(incoming, place, keep=seen["agent"] is None)
            _note(job, here)
    with locally():
        shutil.rmtree(job.place / "incoming", ignore_errors=True)
        if seen["exit"] is not None:
            _replace(job.place / "exit.json", seen["exit"])
        _note(job, "all")


@dataclass(frozen=True, slots=True)
class _File:
    """One that is to come.

    Attributes:
        path: Where it is to be here.
        name: Its name among the attempt's files there.
        size: Its length in bytes.
        executable: Whether it may be executed.
    """

    path: Path
    name: str
    size: int
    executable: bool

    @property
    def bytes_here(self) -> int:
        """How much of it has come."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def has_come(self) -> bool:
        """Whether it is here."""
        return self.path.is_file() and self.bytes_here == self.size


async def _fetch(
    porter: Porter, job: Job, there: str, entries: Sequence[Sequence[Any]], incoming: Path
) -> None:
    """Bring a folder; what has come of it before stays."""
    with locally():
        files = list(_placed(entries, incoming, there))
    pieces: list[tuple[Path, int]] = []

    def requests() -> Iterator[Request]:
        for file in files:
            with locally():
                offsets = [0] if file.size == 0 else range(file.bytes_here, file.size, _PIECE_BYTES)
            for offset in offsets:
                pieces.append((file.path, offset))
                size = min(_PIECE_BYTES, file.size - offset)
                ids = {"run": job.record.id, "attempt": job.attempt}
                yield {"op": "read", "name": file.name, "offset": offset, "size": size, **ids}, b""

    async for _, data in porter.exchange(requests()):
        path, offset = pieces.pop(0)
        with locally():
            _append(path, data, offset)
    with locally():
        for file in files:
            if not file.has_come:
                message = f"{file.name} has not come whole: its length has changed meanwhile"
                raise EngineFailure(RunFailure(FailureCode.TARGET_UNUSABLE, message))
            if file.executable:
                file.path.chmod(0o700)


def _placed(entries: Sequence[Sequence[Any]], incoming: Path, there: str) -> Iterator[_File]:
    """Make folders and links; yields the files that have to come into them."""
    private_folder(incoming)
    for kind, name, *rest in entries:
        path = incoming / name
        if kind == "d":
            path.mkdir(mode=0o700, exist_ok=True)
        elif kind == "l":
            if not path.is_symlink():
                path.symlink_to(rest[0])
        else:
            file = _File(path, f"{there}/{name}", int(rest[0]), bool(rest[1]))
            if file.bytes_here > file.size:
                path.unlink()
            yield file


def checked_entries(entries: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return the entries of a folder, if none leads out of it: what a machine says is not believed unseen.

    Raises:
        EngineFailure: One does.
    """
    links = {name for kind, name, *_ in entries if kind == "l"}
    for _, name, *_ in entries:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise EngineFailure(
                RunFailure(FailureCode.TARGET_UNUSABLE, f"the machine has sent a name {name!r}")
            )
        if any(str(parent) in links for parent in path.parents):
            raise EngineFailure(
                RunFailure(
                    FailureCode.TARGET_UNUSABLE, f"the machine has sent a file behind a link: {name!r}"
                )
            )
    return entries


def _put(incoming: Path, place: Path, *, keep: bool) -> None:
    """Put what has come in the place of what was there, which the script had among its files and may have removed."""
    if not incoming.is_dir():
        return
    if keep:
        # It never began.
        shutil.rmtree(incoming)
        return
    before = incoming.with_name(f"{incoming.name}.before")
    if place.is_dir():
        shutil.rmtree(before, ignore_errors=True)
        place.rename(before)
    incoming.rename(place)
    shutil.rmtree(before, ignore_errors=True)


def _collected(job: Job) -> list[str]:
    try:
        return (job.place / "collected").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return []


def _note(job: Job, name: str) -> None:
    replace_file(job.place / "collected", "\n".join([*_collected(job), name, ""]).encode("ascii"))


def _append(path: Path, data: bytes, offset: int) -> None:
    """Write what comes at an offset; a link there is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
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
        staged = path.with_name(f".{path.name}.new")
        staged.write_bytes(data)
        staged.rename(path)


@contextlib.contextmanager
def locally() -> Iterator[None]:
    """Tell what fails on this machine from what fails on the other."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        message = f"the run's files cannot be written here: {error.strerror or error}{where}"
        raise EngineFailure(RunFailure(FailureCode.TARGET_UNUSABLE, message)) from error
