"""Tables in JSON, such as Azure's `{"input_data": …}`, in which Azure sends requests to models of MLflow.

An estimator that was fitted on a table with texts has an input for each column (`runtimes.estimator_inputs`). Its
rows may be lists, objects, a table in pandas' orientation `split`, or an object of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.errors import InvalidInput, quoted
from stoker.tensors import ModelTensors, TensorInfo, TensorSpec

Inputs = Sequence[TensorInfo] | Sequence[TensorSpec]


def data_of(document: Mapping[str, Any], inputs: Inputs) -> Any:
    """Return Azure's `input_data` of a document as the value of `data` in a scoring request."""
    value = document["input_data"]
    if is_table(value):
        value = columns_of(value, inputs)
    if len(inputs) == 1 and isinstance(value, dict) and value.keys() == {inputs[0].name}:
        (value,) = value.values()
    return value


def is_table(value: Any) -> bool:
    """Return whether a value is a table in pandas' orientation `split`."""
    return isinstance(value, dict) and "columns" in value and "data" in value


def columns_of(table: Any, inputs: Inputs) -> dict[str, list[Any]]:
    """Return the columns of a table (pandas' `split`) by name; labels of the only input make one, in its order."""
    if not is_table(table):
        raise InvalidInput('A table must be an object with "columns" and "data".')
    columns, rows = table["columns"], table["data"]
    labels = _labels(inputs)
    names = labels or [spec.name for spec in inputs]
    given = [*map(str, columns)] if isinstance(columns, list) else []
    # Columns that the estimator does not know are left out, as from rows that are objects.
    others = {*given} - {*names} if is_columns(inputs) else ()
    if sorted(given) != sorted([*names, *others]):
        raise InvalidInput(
            f"The columns of a table must be the inputs of the model ({', '.join(names)}); "
            'arrays are sent as "inputs" or "instances".'
        )
    if not isinstance(rows, list) or any(
        not isinstance(row, list) or len(row) != len(columns) for row in rows
    ):
        raise InvalidInput("All rows of a table must be lists with one value for each column.")
    if labels:
        places = [given.index(label) for label in labels]
        return {inputs[0].name: [[row[place] for place in places] for row in rows]}
    return {name: [row[place] for row in rows] for place, name in enumerate(given) if name not in others}


def is_columns(inputs: Inputs) -> bool:
    """Return whether each input is a column of a table that an estimator was fitted on."""
    return bool(inputs) and all(
        isinstance(info, TensorInfo) and info.nullable and info.shape == (-1,) for info in inputs
    )


def columns_of_rows(rows: Any, tensors: ModelTensors) -> dict[str, Any]:
    """Return the inputs of a model for which `is_columns` holds, by name.

    Args:
        rows: Lists with a value for each input, or for each column that the estimator was fitted on; objects by the
            names of the inputs; or an object of columns. Other names are left out. Values of the only input need no
            list around each.
    """
    names = [info.name for info in tensors.inputs]
    if isinstance(rows, dict):
        if missing := [name for name in names if name not in rows]:
            raise InvalidInput(
                f"The column {quoted(missing[0])} is missing; the columns are {', '.join(names)}."
            )
        return {name: rows[name] for name in names}
    if not isinstance(rows, list):
        raise InvalidInput(f"Expected a list of rows with the columns {', '.join(names)}.")
    kinds = set(map(type, rows))
    if kinds == {dict}:
        for index, row in enumerate(rows):
            if missing := [name for name in names if name not in row]:
                raise InvalidInput(
                    f"Row {index} has no column {quoted(missing[0])}; the columns are {', '.join(names)}."
                )
        return {name: [row[name] for row in rows] for name in names}
    if kinds == {list}:
        order = tensors.table if len(rows[0]) == len(tensors.table) else names
        for index, row in enumerate(rows):
            if len(row) != len(order):
                raise InvalidInput(
                    f"Row {index} has {len(row)} values; a row has {len(order)}: {', '.join(order)}."
                )
        places = {name: place for place, name in enumerate(order)}
        return {name: [row[places[name]] for row in rows] for name in names}
    if len(names) == 1 and not kinds & {list, dict}:
        return {names[0]: rows}
    raise InvalidInput(
        f"Rows must all be lists of the values of {', '.join(names)}, or all objects with these names."
    )


def named_rows(rows: Any, inputs: Inputs) -> Any:
    """Return rows that are objects by the labels of the only input as lists in its order; anything else unchanged."""
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
    """Return the column names of the only input; empty if it has none, or there are several inputs."""
    return inputs[0].labels if len(inputs) == 1 else ()
