"""Which rows of which files a shard scores, where the answers go, and what of that is done already."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.system.durable import replace_file
from stoker_run.trees import files_below

__all__ = ["Piece", "Record", "Shard", "find_files", "pieces_of"]

_DONE: Final = "_done"
_SHARD: Final = re.compile(r"([0-9]{1,6})/([1-9][0-9]{0,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of the work, each for a process of its own.

    Attributes:
        number: Which one, from 0.
        count: How many there are.
    """

    number: int = 0
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Shard:
        """Read `I/N`.

        Raises:
            InvalidSettings: It is none.
        """
        found = _SHARD.fullmatch(text)
        if found is None or int(found[1]) >= int(found[2]):
            raise InvalidSettings(
                f"--shard has to be I/N with I from 0 to N - 1, for instance 0/4, not {text!r}"
            )
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one file, whose answers become one file.

    Attributes:
        source: The file.
        name: What the file of the answers is called, without its ending.
        start: The first row.
        stop: The row behind the last one; None for the end of the file.
    """

    source: Path
    name: str
    start: int = 0
    stop: int | None = None


def find_files(given: Sequence[Path], endings: Sequence[str]) -> dict[str, Path]:
    """Find the files with rows.

    Args:
        given: Files, or folders with files below them; hidden ones are left out.
        endings: What the files of a folder end in to count.

    Returns:
        The files by what their answers are called, without endings, in their order.

    Raises:
        InvalidSettings: One is not there, or two would have the same name.
    """
    found: dict[str, Path] = {}
    for path in given:
        if path.is_dir():
            below = sorted(
                file for file in files_below(path) if file.suffix.removeprefix(".").lower() in endings
            )
            parts = [(file.relative_to(path), file) for file in below if file.is_file()]
            named = [
                (inner, file)
                for inner, file in parts
                if not any(p.startswith((".", "_")) for p in inner.parts)
            ]
        elif path.is_file():
            named = [(Path(path.name), path)]
        else:
            raise InvalidSettings(f"there is no file or folder {path}")
        for inner, file in named:
            name = inner.with_suffix("").as_posix()
            if name in found:
                raise InvalidSettings(
                    f"the answers to {found[name]} and {file} would have one name; rename one"
                )
            found[name] = file.absolute()
    if not found:
        raise InvalidSettings(f"there are no files to score in {', '.join(map(str, given))}")
    return found


def pieces_of(
    files: dict[str, Path], shard: Shard, unit_rows: int, count_rows: Callable[[Path], int]
) -> Iterator[Piece]:
    """Choose what a shard scores: whole files where there are as many as shards, else a part of each file.

    Args:
        files: The files, by what their answers are called.
        shard: The shard.
        unit_rows: Rows that stay together, because they are one request.
        count_rows: Counts the rows of a file.
    """
    if len(files) >= shard.count:
        for place, (name, file) in enumerate(files.items()):
            if place % shard.count == shard.number:
                yield Piece(file, name)
        return
    for name, file in files.items():
        rows = count_rows(file)
        units = -(-rows // unit_rows)
        bounds = (units * number // shard.count for number in (shard.number, shard.number + 1))
        start, stop = (min(unit_rows * bound, rows) for bound in bounds)
        yield Piece(file, f"{name}-{shard.number:05}-of-{shard.count:05}", start, stop)


@dataclass(frozen=True, slots=True)
class Record:
    """What was scored, by what; it lies beside the answers, and tells that they are there.

    Attributes:
        model: Name and version.
        fingerprint: What changes when the model's files do.
        options: What else the answers depend on.
        source: Name, length in bytes and time of change of the file with the rows.
        rows: The first row, and the one behind the last; None for the end.
        answers: The file with the answers; empty where there are no rows.
        scored: How many rows there were.
    """

    model: str
    fingerprint: str
    options: str
    source: list[Any]
    rows: list[int | None]
    answers: str = ""
    scored: int = 0

    @classmethod
    def of(cls, piece: Piece, model: str, fingerprint: str, options: dict[str, Any]) -> Record:
        """What is to be scored."""
        status = piece.source.stat()
        source = [piece.source.name, status.st_size, status.st_mtime_ns]
        return cls(model, fingerprint, json.dumps(options, sort_keys=True), source, [piece.start, piece.stop])

    def find(self, folder: Path, piece: Piece) -> Record | None:
        """Find what is there of it already.

        Returns:
            The record with the answers; None if they are still to be made.

        Raises:
            InvalidSettings: There are answers under this name, but of something else.
        """
        path = _path(folder, piece)
        try:
            there = Record(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise InvalidSettings(
                f"{path} is no record of answers; delete it, or name another --output"
            ) from error
        for name in ("model", "fingerprint", "options", "source", "rows"):
            if getattr(there, name) != getattr(self, name):
                raise InvalidSettings(
                    f"{folder} has answers for {piece.name} already, with another {name}: {getattr(there, name)}, "
                    f"not {getattr(self, name)}; name another --output, or delete {path}"
                )
        return there if not there.answers or (folder / there.answers).is_file() else None

    def store(self, folder: Path, piece: Piece, answers: str, scored: int) -> None:
        """Say that the answers are there; after them."""
        path = _path(folder, piece)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = dataclasses.replace(self, answers=answers, scored=scored)
        replace_file(path, json.dumps(dataclasses.asdict(record)).encode(), 0o644)


def _path(folder: Path, piece: Piece) -> Path:
    return folder / _DONE / f"{piece.name}.json"
