"""Files of answers: written in parts, and renamed when they are complete."""

from __future__ import annotations

import csv
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import orjson

from stoker.errors import InvalidSettings, quoted_names
from stoker.offline.table_files import pyarrow_for
from stoker.system.durable import sync_folder

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
        A function that writes the next rows.
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
