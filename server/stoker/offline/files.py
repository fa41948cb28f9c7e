"""Scoring files: the rows of a shard through a Predictor into files of answers, what is done only once."""

from __future__ import annotations

import csv
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import orjson

from stoker.errors import BatchFailed, InvalidInput, InvalidSettings, StokerError, quoted_names
from stoker.offline.predictor import Predictor
from stoker.offline.shards import Piece, Record, Shard, find_files, pieces_of
from stoker.offline.table_files import FORMATS, count_rows, pyarrow_for, read_lines, read_tables
from stoker.system.durable import sync_folder

__all__ = ["Columns", "Done", "format_for", "result_file", "score_files"]


# Files of answers, written a part at a time and whole: nobody sees one that is not finished.


Columns = Mapping[str, Any]
"""Columns of answers by name, each with an entry a row."""


class _Writer(Protocol):
    def add(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


def format_for(asked: str | None, source: str, columns: Columns) -> str:
    """The format of answers: what was asked for, else that of the rows; of several outputs `npz`, not `npy`."""
    if asked is None and source == "npy":
        return "npy" if len(columns) == 1 else "npz"
    return asked or source


@contextmanager
def result_file(file: Path, kind: str) -> Iterator[Callable[[Columns], None]]:
    """Write a file; it is there when the body ends, and not at all if that raises.

    Args:
        file: The file.
        kind: Its format.

    Yields:
        What takes the next rows.

    Raises:
        InvalidSettings: The format does not hold such columns.
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
class Done:
    """What a shard has done.

    Attributes:
        files: Files of answers that were written.
        rows: Rows that were scored.
        before: Pieces that were done already.
    """

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
) -> Done:
    """Score what a shard has to of some files.

    Args:
        predictor: The model.
        inputs: Files and folders.
        output: The folder of the answers.
        shard: The shard.
        kind: The format of the answers; None takes that of the rows.
        options: What else the answers depend on, for the records.
        progress: Told how many rows have been scored, or were before.

    Raises:
        InvalidSettings: A file cannot be read, or there are other answers in its place.
        InvalidInput: Rows do not fit the model.
        BatchFailed: The model fails on a row.
    """
    unit = predictor.request_rows
    if unit is None:
        raise InvalidSettings(
            f"the rows of {predictor.servable.name} see each other; say with --batch-rows how many make one request"
        )
    done = Done()
    for piece in pieces_of(find_files(inputs, FORMATS), shard, unit, count_rows):
        model = f"{predictor.servable.name}:{predictor.servable.version}"
        record = Record.of(piece, model, predictor.fingerprint, {**options, "format": kind})
        there = record.find(output, piece)
        if there is not None:
            done.before += 1
            progress(there.scored)
            continue
        answers, rows = _score(predictor, piece, output, kind, unit, progress)
        record.store(output, piece, answers, rows)
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
    """The answers to a piece, so many rows at a time, as columns."""
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
                f"{piece.source}: the outputs of {predictor.servable.name} have not one entry a row"
            )
        seen += counts.pop() or 0
        yield columns


def _as_line(answer: bytes) -> orjson.Fragment:
    """JSON as it came; line ends in it can only stand between its parts."""
    return orjson.Fragment(answer.replace(b"\r", b" ").replace(b"\n", b" "))


def _placed(error: StokerError, place: str) -> StokerError:
    return type(error)(f"{place}: {error}")
