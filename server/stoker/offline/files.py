"""Scoring files: the rows of a shard go through a Predictor into files of answers; finished parts are skipped."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import orjson

from stoker.errors import BatchFailed, InvalidInput, InvalidSettings, StokerError, quoted_names
from stoker.models.remote_files import Mirror, list_sizes, open_for_writing, shown_address
from stoker.offline.predictor import Predictor
from stoker.offline.table_files import FORMATS, count_rows, pyarrow_for, read_lines, read_tables
from stoker.system.durable import replace_file, sync_folder
from stoker_base.trees import files_below

# Files of answers are written in parts, and renamed when they are complete.


Columns = Mapping[str, Any]
"""Columns of answers by name, each with an entry a row."""


class _Writer(Protocol):
    def add(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


def format_for(requested: str | None, source: str, columns: Columns) -> str:
    """Return the format of answers: the requested one, else that of the rows (`npz` instead of `npy` if needed)."""
    if requested is None and source == "npy":
        return "npy" if len(columns) == 1 else "npz"
    return requested or source


@contextmanager
def result_file(file: Path, kind: str) -> Iterator[Callable[[Columns], None]]:
    """Write a file; it is there when the body ends, and not at all if that raises.

    Yields:
        What takes the next rows.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        writer: _Writer = _WRITERS[kind](staged)
        try:
            yield writer.add
        finally:
            writer.close()
        descriptor = os.open(staged, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        staged.rename(file)
        sync_folder(file.parent)
    finally:
        staged.unlink(missing_ok=True)


class _Npy:
    """One column. The head is written again at the end: numpy leaves room in it for more rows."""

    def __init__(self, staged: Path) -> None:
        self._file = staged.open("wb+")
        self._rows = 0
        self._described: dict[str, Any] | None = None

    def add(self, columns: Columns) -> None:
        if len(columns) > 1:
            raise InvalidSettings(
                f"npy holds one column, and the answers have {quoted_names(columns)}; give --format npz"
            )
        (array,) = (np.ascontiguousarray(column) for column in columns.values())
        if array.dtype == object:
            raise InvalidSettings("npy holds numbers of one shape; give --format jsonl or parquet")
        row = {
            "descr": np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": False,
            "shape": array.shape[1:],
        }
        if self._described is None:
            self._described = row
            self._write_head()
        elif row != self._described:
            raise InvalidSettings("the answers differ in their shapes; give --format jsonl")
        self._file.write(array.tobytes())
        self._rows += len(array)

    def close(self) -> None:
        with self._file:
            if self._described is not None:
                self._file.seek(0)
                self._write_head()

    def _write_head(self) -> None:
        assert self._described is not None, "the caller has looked"
        head = {**self._described, "shape": (self._rows, *self._described["shape"])}
        np.lib.format.write_array_header_1_0(self._file, head)


class _Npz:
    """Several columns; they are kept in memory until the end."""

    def __init__(self, staged: Path) -> None:
        self._file = staged.open("wb")
        self._parts: dict[str, list[np.ndarray]] = {}

    def add(self, columns: Columns) -> None:
        for name, column in columns.items():
            array = np.asarray(column)
            if array.dtype == object:
                raise InvalidSettings("npz holds numbers of one shape; give --format jsonl or parquet")
            self._parts.setdefault(name, []).append(array)

    def close(self) -> None:
        with self._file:
            arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in self._parts.items()}
            np.savez(self._file, **arrays)


class _Csv:
    """Columns of numbers and texts; of a column with two axes one for each number."""

    def __init__(self, staged: Path) -> None:
        self._file = staged.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        self._begun = False

    def add(self, columns: Columns) -> None:
        flat = {key: cells for name, column in columns.items() for key, cells in _flat(name, column)}
        if not self._begun:
            self._writer.writerow(flat)
            self._begun = True
        self._writer.writerows(zip(*flat.values(), strict=True))

    def close(self) -> None:
        self._file.close()


def _flat(name: str, column: Any) -> Iterator[tuple[str, list[Any]]]:
    array = np.asarray(column)
    if array.ndim > 2:
        raise InvalidSettings(
            f"{name} has {array.ndim - 1} axes a row, and csv has one; give --format npz or jsonl"
        )
    if array.ndim == 1:
        yield name, [_text(cell) for cell in array] if array.dtype == object else array.astype(str).tolist()
    else:
        for place in range(array.shape[1]):
            yield f"{name}_{place}", array[:, place].astype(str).tolist()


class _Jsonl:
    """A line a row: the value of the only column, or an object of all."""

    def __init__(self, staged: Path) -> None:
        self._file = staged.open("wb")

    def add(self, columns: Columns) -> None:
        for row in zip(*columns.values(), strict=True):
            value = row[0] if len(row) == 1 else dict(zip(columns, row, strict=True))
            option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
            self._file.write(orjson.dumps(value, default=_plain, option=option))

    def close(self) -> None:
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


def _text(cell: Any) -> Any:
    return cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else cell


class _Parquet:
    """Columns of Arrow: further axes are lists of one length."""

    def __init__(self, staged: Path) -> None:
        self._staged = staged
        self._arrow = pyarrow_for(staged)
        self._writer: Any = None

    def add(self, columns: Columns) -> None:
        table = self._arrow.table({name: self._column(column) for name, column in columns.items()})
        if self._writer is None:
            self._writer = self._arrow.parquet.ParquetWriter(self._staged, table.schema)
        try:
            self._writer.write_table(table)
        except ValueError as error:
            raise InvalidSettings(
                f"the answers differ in their types; give --format jsonl: {error}"
            ) from error

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _column(self, column: Any) -> Any:
        array = np.asarray(column)
        if array.dtype == object:
            return self._arrow.array([_text(cell) for cell in array])
        cells = self._arrow.array(array.reshape(-1))
        for size in array.shape[:0:-1]:
            cells = self._arrow.FixedSizeListArray.from_arrays(cells, size)
        return cells


_WRITERS: Final[Mapping[str, Callable[[Path], _Writer]]] = {
    "npy": _Npy,
    "npz": _Npz,
    "csv": _Csv,
    "parquet": _Parquet,
    "jsonl": _Jsonl,
}


_READ_ROWS: Final = 4096
"""About how many rows are read at once."""


@dataclass(slots=True)
class ShardResult:
    """The progress of a shard."""

    files: int = 0
    rows: int = 0
    before: int = 0


def score_files(
    predictor: Predictor,
    inputs: Sequence[Path],
    output: Path,
    shard: Shard,
    kind: str | None,
    options: Mapping[str, Any],
    progress: Callable[[int], object],
    *,
    digests: Mapping[Path, str] | None = None,
    sent: SentAnswers | None = None,
) -> ShardResult:
    """Score a shard's part of files.

    Args:
        kind: The format of the answers; None for that of the rows.
        digests: The SHA-256 of files that were fetched, which have another time on each machine.
        sent: Where the answers go from `output`; None if they stay there.
        progress: Told how many rows have been scored, or were before.

    Raises:
        InvalidInput: Rows do not fit the model.
        BatchFailed: The model fails on a row.
    """
    unit = predictor.request_rows
    if unit is None:
        raise InvalidSettings(
            f"the rows of {predictor.deployment.name} see each other; say with --batch-rows how many make one request"
        )
    done = ShardResult()
    for piece in pieces_of(find_files(inputs, FORMATS), shard, unit, count_rows):
        model = f"{predictor.deployment.name}:{predictor.deployment.version}"
        digest = (digests or {}).get(piece.source)
        record = Record.of(piece, model, predictor.fingerprint, {**options, "format": kind}, digest)
        there = record.find(output, piece, () if sent is None else sent.names)
        if there is not None:
            done.before += 1
            progress(there.scored)
            continue
        answers, rows = _score(predictor, piece, output, kind, unit, progress)
        record.store(output, piece, answers, rows)
        if sent is not None:
            sent.send(output, [answers] if answers else [], _path(Path(), piece).as_posix())
        done.files += bool(answers)
        done.rows += rows
    return done


def _score(
    predictor: Predictor,
    piece: Piece,
    output: Path,
    kind: str | None,
    unit: int,
    progress: Callable[[int], object],
) -> tuple[str, int]:
    """Score a piece; returns the file of its answers, and how many rows it has."""
    parts = _answers(predictor, piece, kind, unit * -(-_READ_ROWS // unit))
    first = next(parts, None)
    if first is None:
        return "", 0
    chosen = format_for(kind, piece.source.suffix.removeprefix(".").lower(), first)
    name = f"{piece.name}.{chosen}"
    rows = 0
    with result_file(output / name, chosen) as add:
        columns: Columns | None = first
        while columns is not None:
            add(columns)
            count = len(next(iter(columns.values())))
            rows += count
            progress(count)
            columns = next(parts, None)
    return name, rows


def _answers(predictor: Predictor, piece: Piece, kind: str | None, rows: int) -> Iterator[Columns]:
    """Yield the answers to a piece in parts, as columns."""
    bodies = predictor.signature.takes == "body" and piece.source.suffix.lower() == ".jsonl"
    read = read_lines if bodies else read_tables
    if bodies and kind not in (None, "jsonl"):
        raise InvalidSettings("the answers to bodies are JSON; leave --format out, or give jsonl")
    seen = piece.start
    for table in read(piece.source, piece.start, piece.stop, rows):
        try:
            if bodies:
                yield {"answer": [_as_line(answer) for answer in predictor.score_bodies(table)]}
                continue
            answer = predictor(table)
        except (InvalidInput, BatchFailed) as error:
            raise _placed(error, f"{piece.source}, rows from {seen}") from error
        columns = answer if isinstance(answer, Mapping) else {"result": answer}
        counts = {len(column) if hasattr(column, "__len__") else None for column in columns.values()}
        if len(counts) > 1 or None in counts:
            raise BatchFailed(
                f"{piece.source}: the outputs of {predictor.deployment.name} have not one entry a row"
            )
        seen += counts.pop() or 0
        yield columns


def _as_line(answer: bytes) -> orjson.Fragment:
    """JSON as it came; line ends in it can only stand between its parts."""
    return orjson.Fragment(answer.replace(b"\r", b" ").replace(b"\n", b" "))


def _placed(error: StokerError, place: str) -> StokerError:
    return type(error)(f"{place}: {error}")


_DONE: Final = "_done"


class SentAnswers:
    """Answers at an address: a piece is sent when it is whole, its record last, and then removed here.

    Args:
        cache: The folder of mirrors, to which the records of earlier calls are fetched.
        folder: The folder in which the answers are written.

    Attributes:
        names: The files at the address when this began.
        shown: The address without secrets.

    Raises:
        OperatorError: The store cannot be read.
    """

    def __init__(self, address: str, cache: Path, folder: Path) -> None:
        self.names = frozenset(list_sizes(address))
        self.shown = shown_address(address)
        self._write = open_for_writing(address)
        if any(name.startswith(f"{_DONE}/") for name in self.names):
            records = Mirror(f"{address}/{_DONE}", cache)
            records.update()
            shutil.copytree(records.path, folder / _DONE)

    def send(self, folder: Path, answers: Sequence[str], record: str) -> None:
        """Send files of answers, and then their record.

        Raises:
            OperatorError: The store cannot be written.
        """
        for name in (*answers, record):
            self._write(name, folder / name)
        for name in answers:
            (folder / name).unlink()


# Shards: parts of files, each scored once.


_SHARD: Final = re.compile(r"([0-9]{1,6})/([1-9][0-9]{0,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
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


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one file, whose answers become one file.

    Attributes:
        name: What the file of the answers is called, without its ending.
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


@dataclass(frozen=True, slots=True)
class Record:
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
        is_there = not there.answers or there.answers in sent or (folder / there.answers).is_file()
        return there if is_there else None

    def store(self, folder: Path, piece: Piece, answers: str, scored: int) -> None:
        """Store the record, after its answers."""
        path = _path(folder, piece)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = dataclasses.replace(self, answers=answers, scored=scored)
        replace_file(path, json.dumps(dataclasses.asdict(record)).encode(), 0o644)


def _path(folder: Path, piece: Piece) -> Path:
    return folder / _DONE / f"{piece.name}.json"
