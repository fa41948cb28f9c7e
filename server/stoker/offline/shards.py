"""Shards: parts of files, each scored once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.offline.sent_answers import DONE_FOLDER
from stoker.system.durable import replace_file
from stoker_base.trees import files_below

_SHARD: Final = re.compile(r"([0-9]{1,6})/([1-9][0-9]{0,5})", re.ASCII)


class Shard(Struct, frozen=True):
    """One of several parts of the work, each for a process of its own."""

    number: int = 0
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Shard:
        """Read `I/N`."""
        found = _SHARD.fullmatch(text)
        if found is None or int(found[1]) >= int(found[2]):
            raise InvalidSettings(
                f"--shard has to be I/N with I from 0 to N - 1, for instance 0/4, not {text!r}"
            )
        return cls(int(found[1]), int(found[2]))


class Piece(Struct, frozen=True):
    """Rows of one file, whose answers become one file.

    Attributes:
        name: The name of the file of answers, without its ending.
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
        endings: Files of a folder count if their names end in one of these.

    Returns:
        The files by the names of their answers, without endings, in their order.
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
    """Return the pieces of a shard: whole files if there are as many files as shards, else a part of each file.

    Args:
        unit_rows: Rows that stay together, because they are one request.
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


class Record(Struct, frozen=True):
    """The record of a scored piece, stored beside the answers after them.

    Attributes:
        source: Name, length in bytes, and time of change or SHA-256 of the file with the rows.
        rows: The first row, and the one behind the last; None for the end.
        answers: The file with the answers; empty where there are no rows.
    """

    model: str
    fingerprint: str
    options: str
    source: list[Any]
    rows: list[int | None]
    answers: str = ""
    scored: int = 0

    @classmethod
    def of(
        cls, piece: Piece, model: str, fingerprint: str, options: dict[str, Any], digest: str | None = None
    ) -> Record:
        """Return the record of a piece that is not scored yet."""
        status = piece.source.stat()
        source = [piece.source.name, status.st_size, digest or status.st_mtime_ns]
        return cls(model, fingerprint, json.dumps(options, sort_keys=True), source, [piece.start, piece.stop])

    def find(self, folder: Path, piece: Piece, sent: Collection[str] = ()) -> Record | None:
        """Find the stored record of the piece.

        Args:
            sent: The files that are where the answers of the folder go.

        Returns:
            The record with the answers; None if the piece has to be scored.
        """
        path = answers_path(folder, piece)
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
        is_there = not there.answers or there.answers in sent or (folder / there.answers).is_file()
        return there if is_there else None

    def store(self, folder: Path, piece: Piece, answers: str, scored: int) -> None:
        """Store the record, after its answers."""
        path = answers_path(folder, piece)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = msgspec.structs.replace(self, answers=answers, scored=scored)
        replace_file(path, json.dumps(msgspec.structs.asdict(record)).encode(), 0o644)


def answers_path(folder: Path, piece: Piece) -> Path:
    """Return the path of the record of a piece whose answers are complete."""
    return folder / DONE_FOLDER / f"{piece.name}.json"
