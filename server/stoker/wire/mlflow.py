"""MLflow's scoring protocol and Azure's variant of it, for models whose inputs are tensors. Sans-I/O.

`{"instances": …}` and `{"inputs": …}` are TensorFlow Serving's. Tables (`dataframe_split`, `dataframe_records`, CSV,
Azure's `input_data`) are accepted if their columns are the inputs of the model; an estimator takes them by its own
columns, or in their order where it was fitted without names.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from stoker.errors import InvalidInput, MalformedBody, UnsupportedEncoding
from stoker.settings.choices import WORDS, NonFinite
from stoker.wire.json_bodies import parse_document
from stoker.wire.tables import columns_of, columns_of_rows, is_columns, is_table, named_rows
from stoker.wire.tfs import PredictRequest, decode_predict, encode_predict

if TYPE_CHECKING:
    import numpy as np

    from stoker.tensors import ModelTensors, NamedSignature

_FORMATS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs", "input_data")
_MISSING: Final = frozenset(("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"))
"""How CSV says that a value is missing."""


class Invocation(Struct, frozen=True):
    """A decoded request; with `bare`, the predictions are the whole answer, as from Azure's server."""

    predict: PredictRequest
    bare: bool


def decode_invocation(signature: NamedSignature, body: bytes, *, is_csv: bool = False) -> Invocation:
    """Decode a body of `/invocations`."""
    tensors = signature.tensors
    document = {"dataframe_split": _table_of_csv(body, tensors)} if is_csv else parse_document(body)
    if is_table(document):
        # The form of MLflow 1.
        document = {"dataframe_split": document}
    formats = [name for name in _FORMATS if name in document] if isinstance(document, dict) else []
    if len(formats) != 1:
        raise MalformedBody(f"Expected a JSON object with exactly one of {', '.join(_FORMATS)}.")
    (kind,) = formats
    if document.get("params"):
        raise InvalidInput("This model takes no params.")
    inputs = tensors.inputs
    value = document[kind]
    if tensors.estimator:
        given = _of_estimator(kind, value, tensors)
        if given is not value or kind not in ("instances", "inputs"):
            body = orjson.dumps({"inputs": given})
    elif kind == "dataframe_records":
        body = orjson.dumps({"instances": named_rows(value, inputs)})
    elif kind in ("dataframe_split", "input_data"):
        given = columns_of(value, inputs) if kind == "dataframe_split" or is_table(value) else value
        body = orjson.dumps({"inputs": given})
    return Invocation(decode_predict([signature], body), kind == "input_data")


def encode_invocation(
    invocation: Invocation, outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS
) -> bytes:
    """Encode the answer: `{"predictions": …}`, or the predictions alone."""
    return encode_predict(
        invocation.predict, outputs, non_finite, key="" if invocation.bare else "predictions"
    )


def _of_estimator(kind: str, value: Any, tensors: ModelTensors) -> Any:
    """Return what was sent for an estimator as its inputs by name, or its only one.

    `dataframe_split` and `input_data` may be a table of rows; all others are rows, which are lists or objects, or an
    object of columns.
    """
    inputs = tensors.inputs
    is_split = kind == "dataframe_split" or (
        kind == "input_data" and isinstance(value, dict) and "data" in value
    )
    if is_split and not (isinstance(value, dict) and isinstance(value.get("data"), list)):
        raise InvalidInput('A table must be an object with "columns" and "data".')
    names = value.get("columns") if is_split else None
    if is_columns(inputs):
        return (
            columns_of(value, inputs)
            if names is not None
            else columns_of_rows(_rows(value, is_split), tensors)
        )
    (info,) = inputs
    if isinstance(value, dict) and value.keys() == {info.name}:
        return value
    rows = _rows(value, is_split)
    if isinstance(rows, dict):
        columns = {str(name): one if isinstance(one, list) else [one] for name, one in rows.items()}
        if len({*map(len, columns.values())}) > 1:
            raise InvalidInput("All columns must be lists of the same length.")
        names, rows = [*columns], [list(row) for row in zip(*columns.values(), strict=True)]
    if names is not None:
        return columns_of({"columns": names, "data": rows}, inputs)[info.name] if info.labels else rows
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        return rows
    if all(isinstance(row, dict) and row.keys() == {info.name} for row in rows):
        return [row[info.name] for row in rows]
    return named_rows(rows, inputs) if info.labels else _in_order(rows)


def _rows(value: Any, is_split: bool) -> Any:
    return value["data"] if is_split else value


def _in_order(records: list[Any]) -> list[list[Any]]:
    """Return records as lists, in the order of the names of the first one."""
    names = [*records[0]]
    for index, record in enumerate(records):
        if not isinstance(record, dict) or [*record] != names:
            raise InvalidInput(
                f"All records must have the same names in the same order, for the model was fitted without names; "
                f"row {index} has not those of the first."
            )
    return [[*record.values()] for record in records]


def _table_of_csv(body: bytes, tensors: ModelTensors) -> dict[str, Any]:
    """Return CSV with a head as a table whose values have the types of the model's columns."""
    if not tensors.estimator:
        raise UnsupportedEncoding("This model takes arrays; send them as JSON (inputs or instances).")
    try:
        lines = [
            line
            for line in csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
            if line
        ]
    except (ValueError, csv.Error) as error:
        raise MalformedBody(f"The body is no CSV: {error}.") from error
    head, *lines = lines or [[]]
    kinds = {info.name: info.dtype for info in tensors.inputs} if is_columns(tensors.inputs) else {}
    usual = "string" if kinds or tensors.inputs[0].dtype == "string" else "float64"
    types = [kinds.get(name, usual) for name in head]
    for number, line in enumerate(lines, 2):
        if len(line) != len(head):
            raise MalformedBody(f"Line {number} of the CSV has {len(line)} values, its head {len(head)}.")
    return {
        "columns": head,
        "data": [[_value(text, dtype) for text, dtype in zip(line, types, strict=True)] for line in lines],
    }


def _value(text: str, dtype: str) -> Any:
    """The value of a cell; a text that does not fit is left for the check of the input, which names it."""
    if text.strip() in _MISSING:
        return None
    if dtype == "bool":
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    if dtype == "string":
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    # JSON has no infinities.
    return number if math.isfinite(number) else text
