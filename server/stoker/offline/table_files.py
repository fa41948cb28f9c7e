"""Files with rows, read a part at a time: `.npy`, `.npz`, `.csv`, `.parquet` and `.jsonl`."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import orjson

from stoker.errors import InvalidSettings
from stoker.system.extras import how_to_install
from stoker.wire.row_files import warn_of_numbered_header

logger = logging.getLogger(__name__)

FORMATS: Final = ("npy", "npz", "csv", "parquet", "jsonl")
"""Formats by the ends of files."""


def count_rows(file: Path) -> int:
    """Count the rows of a file; text files are read completely."""
    with _reading(file):
        match _format(file):
            case "npy":
                with file.open("rb") as opened:
                    return _npy_header(opened)[0][0]
            case "npz":
                return len(next(iter(_members(file).values())))
            case "parquet":
                return int(pyarrow_for(file).parquet.ParquetFile(file).metadata.num_rows)
            case "jsonl":
                return sum(1 for _ in _lines(file))
            case _:
                return sum(len(frame) for frame in _csv_frames(file, 1 << 16, usecols=[0]))


def read_tables(file: Path, start: int, stop: int | None, rows: int) -> Iterator[Any]:
    """Read rows of a file as tables for a Predictor.

    Args:
        stop: The row behind the last one; None for the end of the file.
        rows: Rows of a table; the last one may have fewer.
    """
    with _reading(file):
        yield from _READERS[_format(file)](file, start, stop, rows)


def read_lines(file: Path, start: int, stop: int | None, rows: int) -> Iterator[list[bytes]]:
    """Read non-blank lines of text, `rows` at a time; the arguments are those of `read_tables`."""
    with _reading(file):
        lines = itertools.islice(_lines(file), start, stop)
        while part := list(itertools.islice(lines, rows)):
            yield part


def pyarrow_for(file: Path) -> Any:
    """Import pyarrow for a file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidSettings(f"{file} needs pyarrow; {how_to_install('offline')}") from error
    return pa


class _reading:  # noqa: N801  # reads as the statement that it is
    """Turns errors of libraries into one error that names the file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, InvalidSettings) or not isinstance(error, ValueError | OSError | EOFError):
            return
        raise InvalidSettings(f"{self._file} cannot be read: {error}") from error


def _format(file: Path) -> str:
    ending = file.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise InvalidSettings(f"{file} is none of the files that can be read: {', '.join(FORMATS)}")
    return ending


def _npy(file: Path, start: int, stop: int | None, rows: int) -> Iterator[np.ndarray]:
    # Not mapped: if another program truncates a mapped file, the kernel kills this process.
    with file.open("rb") as opened:
        shape, by_columns, dtype = _npy_header(opened)
        begin = opened.tell()
        array = np.load(file, allow_pickle=False) if by_columns else None
        row = shape[1:]
        for first, last in _cuts(start, shape[0] if stop is None else stop, rows):
            if array is not None:
                yield array[first:last]
                continue
            count = (last - first) * math.prod(row)
            opened.seek(begin + first * math.prod(row) * dtype.itemsize)
            found = np.frombuffer(opened.read(count * dtype.itemsize), dtype)
            if len(found) < count:
                raise ValueError(f"it ends before row {last}")
            yield found.reshape(last - first, *row).copy()


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order (whether by columns) and dtype of an array; leaves the file at the first number."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it has Python objects, which are not read")
    if not shape:
        raise ValueError("it has one number and no rows")
    return shape, by_columns and len(shape) > 1, dtype


def _npz(file: Path, start: int, stop: int | None, rows: int) -> Iterator[dict[str, np.ndarray]]:
    members = _members(file)
    end = len(next(iter(members.values()))) if stop is None else stop
    for first, last in _cuts(start, end, rows):
        yield {name: array[first:last] for name, array in members.items()}


def _members(file: Path) -> Mapping[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as archive:
        members = {name: archive[name] for name in archive.files}
    if not members or len({array.shape[:1] for array in members.values()}) > 1:
        raise ValueError("its arrays do not have the same number of rows")
    return members


def _cuts(start: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, rows):
        yield first, min(first + rows, stop)


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as lines:
        for line in lines:
            if stripped := line.strip():
                yield stripped


def _jsonl(file: Path, start: int, stop: int | None, rows: int) -> Iterator[Any]:
    for part in read_lines(file, start, stop, rows):
        values = [orjson.loads(line) for line in part]
        if all(isinstance(value, dict) for value in values):
            if any(value.keys() != values[0].keys() for value in values):
                raise ValueError("its objects do not all have the same names")
            yield {name: [value[name] for value in values] for name in values[0]}
        else:
            yield values


def _csv(file: Path, start: int, stop: int | None, rows: int) -> Iterator[Any]:
    if stop == start:
        return
    header = 0 if _has_header(file) else None
    # Of several shards, only the one that scores the line warns.
    if header is None and start == 0 and (warning := warn_of_numbered_header(file, _first_line(file))):
        logger.warning("%s", warning)
    skipped = range(1 if header == 0 else 0, start + (1 if header == 0 else 0))
    count = None if stop is None else stop - start
    for frame in _csv_frames(file, rows, header=header, skiprows=skipped, nrows=count):
        if len(frame):
            yield {str(name): frame[name].to_numpy() for name in frame.columns}


def _csv_frames(file: Path, rows: int, **options: Any) -> Iterator[Any]:
    try:
        import pandas as pd
    except ImportError as error:
        raise InvalidSettings(f"{file} needs pandas; {how_to_install('offline')}") from error
    options.setdefault("header", 0 if _has_header(file) else None)
    with pd.read_csv(file, chunksize=rows, **options) as frames:
        yield from frames


def _has_header(file: Path) -> bool:
    """Whether the first line has names: one of its cells is no number."""
    try:
        return not [float(cell) for cell in _first_line(file).split(",")]
    except ValueError:
        return True


def _first_line(file: Path) -> str:
    with file.open(encoding="utf-8-sig") as lines:
        return lines.readline()


def _parquet(file: Path, start: int, stop: int | None, rows: int) -> Iterator[Any]:
    arrow = pyarrow_for(file)
    seen = 0
    with arrow.parquet.ParquetFile(file) as table:
        for batch in table.iter_batches(rows):
            first, last = (
                max(0, start - seen),
                batch.num_rows if stop is None else min(stop - seen, batch.num_rows),
            )
            seen += batch.num_rows
            if first < last:
                part = batch.slice(first, last - first)
                yield {name: _cells(part.column(name)) for name in part.schema.names}
            if stop is not None and seen >= stop:
                return


def _cells(column: Any) -> np.ndarray:
    """A column of Arrow as an array; lists of one length are its further axes."""
    rows, shape = len(column), []
    while hasattr(column.type, "value_type") and hasattr(column, "flatten") and column.null_count == 0:
        lengths = set(column.value_lengths().to_pylist())
        if len(lengths) != 1:
            break
        shape.append(lengths.pop())
        column = column.flatten()
    cells: np.ndarray = column.to_numpy(zero_copy_only=False)
    return cells.reshape(rows, *shape)


_READERS: Final[Mapping[str, Callable[[Path, int, int | None, int], Iterator[Any]]]] = {
    "npy": _npy,
    "npz": _npz,
    "csv": _csv,
    "parquet": _parquet,
    "jsonl": _jsonl,
}
