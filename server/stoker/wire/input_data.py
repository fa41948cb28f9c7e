"""Azure's `{"input_data": …}`, in which it sends requests to models of MLflow: arrays, or tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.errors import InvalidInput
from stoker.tensors import TensorInfo, TensorSpec

__all__ = ["columns_of", "data_of", "is_table", "named_rows"]

Inputs = Sequence[TensorInfo] | Sequence[TensorSpec]


def data_of(document: Mapping[str, Any], inputs: Inputs) -> Any:
    """Return Azure's `input_data` as what stands under `data` in a scoring request.

    Args:
        document: An object with `input_data`.
        inputs: The inputs of the model.

    Raises:
        InvalidInput: It is a table whose columns are not the inputs, nor what the columns of the only one are called.
    """
    value = document["input_data"]
    if is_table(value):
        value = columns_of(value, inputs)
    if len(inputs) == 1 and isinstance(value, dict) and value.keys() == {inputs[0].name}:
        (value,) = value.values()
    return value


def is_table(value: Any) -> bool:
    """Whether this is a table in pandas' orientation `split`."""
    return isinstance(value, dict) and "columns" in value and "data" in value


def columns_of(table: Any, inputs: Inputs) -> dict[str, list[Any]]:
    """Return the columns of a table by their names; those of the only input together, in its order.

    Args:
        table: A table in pandas' orientation `split`.
        inputs: The inputs of the model, which the columns have to be, or the labels of the only one.

    Raises:
        InvalidInput: It is none, or has other columns.
    """
    if not is_table(table):
        raise InvalidInput('A table must be an object with "columns" and "data".')
    columns, rows = table["columns"], table["data"]
    labels = _labels(inputs)
    names = labels or [spec.name for spec in inputs]
    if not isinstance(columns, list) or sorted(map(str, columns)) != sorted(names):
        raise InvalidInput(
            f"The columns of a table must be the inputs of the model ({', '.join(names)}); "
            'arrays are sent as "inputs" or "instances".'
        )
    if not isinstance(rows, list) or any(
        not isinstance(row, list) or len(row) != len(columns) for row in rows
    ):
        raise InvalidInput("All rows of a table must be lists with one value for each column.")
    if labels:
        given = [*map(str, columns)]
        places = [given.index(label) for label in labels]
        return {inputs[0].name: [[row[place] for place in places] for row in rows]}
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}


def named_rows(rows: Any, inputs: Inputs) -> Any:
    """Return rows that are objects by the labels of the only input as lists in its order; all else as it is.

    Raises:
        InvalidInput: One of them has other names.
    """
    labels = _labels(inputs)
    if not labels or not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        return rows
    wanted = set(labels)
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != wanted:
            raise InvalidInput(
                f"Rows must be objects with the keys {', '.join(labels)}; row {index} is not one."
            )
    return [[row[label] for label in labels] for row in rows]


def _labels(inputs: Inputs) -> tuple[str, ...]:
    """What the columns of the only input are called; empty where nobody says, or there are several."""
    return inputs[0].labels if len(inputs) == 1 else ()
