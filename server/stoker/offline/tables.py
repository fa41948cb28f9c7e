"""Tables of callers as the inputs of a model, and its outputs as the same kind of table.

A table is a mapping of arrays by name, a data frame, or an array alone. Its rows are its first axis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput, quoted_names
from stoker.offline.rows import Feeds, Ragged
from stoker.tensors import TensorInfo, number_kind
from stoker.wire.tensor_json import as_dtype

Columns = dict[str, Any]
"""Columns of a table by name: arrays, or values that numpy makes arrays of."""

_KINDS: Final = {"b": "b", "i": "iub", "u": "iub", "f": "iuf"}
"""Kinds of numbers that an input of a kind takes, as a server does of JSON and of binary tensors."""
_BARE: Final = ""


def _is_frame(table: Any) -> bool:
    """Whether a table is a data frame of pandas."""
    return hasattr(table, "columns") and hasattr(table, "to_numpy")


def columns_of(table: Any, keep: Collection[str]) -> tuple[Columns, Columns]:
    """Split a table into columns for the model and columns that stay as they are.

    Args:
        table: A mapping, a data frame, or an array; that has one column without a name.

    Raises:
        InvalidInput: One of those is not there, or one for the model has masked elements.
    """
    if _is_frame(table):
        columns: Columns = {str(name): table[name].to_numpy() for name in table.columns}
    elif isinstance(table, Mapping):
        columns = {str(name): column for name, column in table.items()}
    else:
        columns = {_BARE: table}
    missing = [name for name in keep if name not in columns]
    if missing:
        raise InvalidInput(f"There is no column {missing[0]!r} to keep; there are: {quoted_names(columns)}.")
    kept = {name: columns.pop(name) for name in keep}
    if not columns:
        raise InvalidInput("There is no column for the model.")
    for name, column in columns.items():
        # numpy.ma is not loaded for arrays of the usual class.
        if type(column) is not np.ndarray and isinstance(column, np.ndarray) and np.ma.is_masked(column):
            where = "The rows are" if name == _BARE else f"The column {name!r} is"
            raise InvalidInput(
                f"{where} a masked array, and what lies under its mask would be scored: fill it first, by its "
                "method filled."
            )
    return columns, kept


def inputs_of(columns: Columns, infos: Sequence[TensorInfo]) -> Feeds:
    """Return the inputs of a model.

    A model with one input takes the only column, whatever it is called, or all of them, if a row of the input is as
    many numbers as there are columns.

    Raises:
        InvalidInput: A column is missing, unknown, or does not fit its input.
    """
    names = [info.name for info in infos]
    if len(infos) == 1 and set(columns) != set(names):
        if len(columns) == 1:
            columns = {names[0]: next(iter(columns.values()))}
        elif infos[0].shape[1:] in ((len(columns),), (-1,)):
            columns = {names[0]: np.stack([np.asarray(column) for column in columns.values()], axis=1)}
    if set(columns) != set(names):
        raise InvalidInput(
            f"The columns have to be the inputs {', '.join(names)}; got {quoted_names(columns)}. "
            "Columns that the model does not take go through it with keep."
        )
    return {info.name: _input(columns[info.name], info) for info in infos}


def _input(column: Any, info: TensorInfo) -> np.ndarray | Ragged:
    """A column as an input: an array, or rows of different sizes."""
    if info.dtype == "string":
        return _fitting(_strings(np.asarray(column, object), info), info)
    array = column if isinstance(column, np.ndarray) else _as_array(column)
    if array.dtype != object:
        return _fitting(_numbers(array, info), info)
    if not array.ndim:
        raise InvalidInput(f"Expected {info}, got no array: {type(column).__name__}.")
    rows = [np.asarray(row) for row in array.tolist()]
    if len({row.shape for row in rows}) == 1:
        return _fitting(_numbers(np.stack(rows), info), info)
    return [_fitting(_numbers(row[None], info), info) for row in rows]


def _as_array(column: Any) -> np.ndarray:
    try:
        return np.asarray(column)
    except ValueError:  # its rows have different sizes
        rows = list(column)
        array = np.empty(len(rows), object)
        array[:] = rows
        return array


def _numbers(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    kind = info.kind
    if number_kind(array.dtype) not in _KINDS[kind]:
        raise InvalidInput(f"{info.name}: expected {info}, got an array of dtype {array.dtype}.")
    return as_dtype(array, info)


def _strings(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Texts as `object` arrays of `bytes`."""
    encoded = np.empty(array.size, object)
    for place, element in enumerate(array.reshape(-1).tolist()):
        if not isinstance(element, str | bytes):
            raise InvalidInput(f"{info.name}: expected strings, got {type(element).__name__}.")
        encoded[place] = element.encode() if isinstance(element, str) else element
    return encoded.reshape(array.shape)


def _fitting(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """The array, if it fits the input; a column of single values fits rows of one."""
    if array.ndim == 1 and len(info.shape) == 2 and info.shape[1] in (1, -1):
        array = array[:, None]
    any_rows = info.shape and TensorInfo(info.name, info.dtype, (-1, *info.shape[1:])).fits(array.shape)
    if not any_rows and not info.fits(array.shape):
        raise InvalidInput(f"Expected {info}, got the shape {list(array.shape)}.")
    return array


def script_rows(columns: Columns) -> Any:
    """Return the rows for an entry script: the values of a single column, or an object for each row of several."""
    if len(columns) == 1:
        (column,) = columns.values()
        if isinstance(column, np.ndarray) and column.dtype != object:
            return column
        return [_plain(row) for row in column]
    rows = (dict(zip(columns, map(_plain, row), strict=True)) for row in zip(*columns.values(), strict=True))
    return list(rows)


def _plain(cell: Any) -> Any:
    return cell.decode() if isinstance(cell, bytes) else cell


def in_form_of(table: Any, kept: Columns, outputs: Any) -> Any:
    """Return outputs as the same kind of table that the inputs came in.

    Args:
        outputs: Arrays by name; or one array, of a script whose answer has no names.
    """
    if isinstance(table, np.ndarray | list | tuple) and not isinstance(outputs, Mapping):
        return outputs
    named = outputs if isinstance(outputs, Mapping) else {"result": outputs}
    if _is_frame(table):
        import pandas as pd

        columns = {**kept, **{name: _cells(array) for name, array in named.items()}}
        return pd.DataFrame(columns, index=table.index)
    if isinstance(table, Mapping):
        return {**kept, **named}
    return next(iter(named.values())) if len(named) == 1 else dict(named)


def _cells(array: Any) -> Any:
    """The column of a frame that has an array's rows: numbers, texts, arrays of one axis, or lists."""
    if not isinstance(array, np.ndarray) or array.ndim == 1:
        texts = isinstance(array, np.ndarray) and array.dtype == object
        return [_text(cell) for cell in array] if texts else array
    return list(array) if array.ndim == 2 and array.dtype != object else array.tolist()


def _text(cell: Any) -> Any:
    try:
        return cell.decode() if isinstance(cell, bytes) else cell
    except UnicodeDecodeError:
        return cell
