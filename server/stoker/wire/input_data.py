"""Azure's `{"input_data": …}`, in which it sends requests to models of MLflow: arrays, or tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stoker.errors import InvalidInput

__all__ = ["columns_of", "data_of", "is_table"]


def data_of(document: Mapping[str, Any], names: Collection[str]) -> Any:
    """Return Azure's `input_data` as what stands under `data` in a scoring request.

    Args:
        document: An object with `input_data`.
        names: The inputs of the model.

    Raises:
        InvalidInput: It is a table whose columns are not the inputs.
    """
    value = document["input_data"]
    if is_table(value):
        value = columns_of(value, names)
    if len(names) == 1 and isinstance(value, dict) and value.keys() == set(names):
        (value,) = value.values()
    return value


def is_table(value: Any) -> bool:
    """Whether this is a table in pandas' orientation `split`."""
    return isinstance(value, dict) and "columns" in value and "data" in value


def columns_of(table: Any, names: Collection[str]) -> dict[str, list[Any]]:
    """Return the columns of a table by their names.

    Args:
        table: A table in pandas' orientation `split`.
        names: The inputs of the model, which the columns have to be.

    Raises:
        InvalidInput: It is none, or has other columns.
    """
    if not is_table(table):
        raise InvalidInput('A table must be an object with "columns" and "data".')
    columns, rows = table["columns"], table["data"]
    if not isinstance(columns, list) or sorted(map(str, columns)) != sorted(names):
        raise InvalidInput(
            f"The columns of a table must be the inputs of the model ({', '.join(names)}); "
            'arrays are sent as "inputs" or "instances".'
        )
    if not isinstance(rows, list) or any(
        not isinstance(row, list) or len(row) != len(columns) for row in rows
    ):
        raise InvalidInput("All rows of a table must be lists with one value for each column.")
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}
