"""A model of MLflow behind MLflow's scoring protocol: bodies to tables and arrays, predictions to JSON.

The signature is enforced here, row by row and column by column, so that a row does not depend on the rows beside it.
"""

from __future__ import annotations

import base64
import importlib.util
import inspect
import io
import json
import logging
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import LoadFailed, RequestError
from stoker.scripts.mlflow_folder import Column, MlflowFolder, TensorInput

logger = logging.getLogger(__name__)

_FORMATS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs", "input_data")
_EXPECTED: Final = f"expected an object with one of {', '.join(_FORMATS)}, or CSV"
_DTYPES: Final = {
    "boolean": "bool",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
}
_BOUNDS: Final = {"integer": 1 << 31, "long": 1 << 63}


class MlflowModel:
    """A loaded model."""

    def __init__(self, folder: Path) -> None:
        """Load the model by mlflow if that is installed, else by scikit-learn alone if it is a pickle of that."""
        if importlib.util.find_spec("pandas") is None:
            raise LoadFailed("models of MLflow take tables, for which pandas is needed: pip install pandas")
        described = MlflowFolder.read(folder)
        self._inputs = described.inputs
        self._predict = _loaded(described)
        self._takes_params = "params" in _parameters(self._predict)

    def answer(self, body: str) -> Any:
        """Answer one request.

        Args:
            body: JSON in one of MLflow's formats or in Azure's, or CSV with a header.

        Raises:
            RequestError: The body is none of these, or does not fit the signature.
        """
        if body.lstrip().startswith("["):
            raise RequestError(f"{_EXPECTED}; got a list.")
        if not body.lstrip().startswith("{"):
            return {"predictions": _plain(self._predict(self._table_of_csv(body)))}
        document = json.loads(body)
        if "columns" in document and "data" in document:
            # MLflow 1 took this format, and input examples have it.
            document = {"dataframe_split": document}
        formats = [name for name in _FORMATS if name in document]
        if len(formats) != 1:
            raise RequestError(f"{_EXPECTED}; got {', '.join(map(repr, document)) or 'an empty one'}.")
        (kind,) = formats
        params = document.get("params")
        if params and not self._takes_params:
            raise RequestError("This model takes no params.")
        data = self._data(kind, document[kind])
        result = _plain(self._predict(data, params=params) if params else self._predict(data))
        # Azure's own server answers with the predictions alone.
        return result if kind == "input_data" else {"predictions": result}

    def _data(self, kind: str, value: Any) -> Any:
        if kind == "input_data":
            # A table has columns and data; other values have the format of `inputs`.
            kind = "dataframe_split" if isinstance(value, dict) and "data" in value else "inputs"
        if kind == "dataframe_split":
            if not isinstance(value, dict) or not isinstance(value.get("data"), list):
                raise RequestError('A table must be an object with "columns" and "data".')
            return self._table(value.get("columns"), value["data"])
        if kind == "dataframe_records" or (kind == "instances" and self._has_columns and _are_objects(value)):
            return self._table_of_records(value)
        if kind == "instances" and _are_objects(value):
            names = _common_names(value)
            value = {name: [record[name] for record in value] for name in names}
        return self._arrays(value)

    @property
    def _has_columns(self) -> bool:
        return bool(self._inputs) and isinstance(self._inputs[0], Column)

    def _table_of_csv(self, text: str) -> Any:
        import pandas as pd

        columns = [one for one in self._inputs if isinstance(one, Column)]
        texts = {one.name: "object" for one in columns if one.type == "string"}
        try:
            table = pd.read_csv(io.StringIO(text), dtype=texts)
        except (ValueError, pd.errors.ParserError) as error:
            raise RequestError(f"The body is neither JSON nor CSV: {error}") from error
        if not columns:
            return table
        rows = table.astype(object).where(table.notna(), None).to_numpy().tolist()
        return self._table(list(table.columns), rows)

    def _table_of_records(self, records: Any) -> Any:
        if not _are_objects(records):
            raise RequestError("dataframe_records must be a list of objects.")
        names = [one.name for one in self._inputs if isinstance(one, Column)]
        if not names or None in names:
            names = list(_common_names(records))
        return self._table(names, [[record.get(name, _ABSENT) for name in names] for record in records])

    def _table(self, columns: Any, rows: Sequence[Any]) -> Any:
        """Return a table with the columns of the signature, in its order and types; other columns are left out."""
        import pandas as pd

        if columns is not None and not _are_names(columns):
            raise RequestError("columns must be a list of different names.")
        widths = {len(row) if isinstance(row, list) else -1 for row in rows}
        if widths - {len(columns) if columns is not None else max(widths, default=0)} or -1 in widths:
            raise RequestError("All rows must be lists with one value for each column.")
        if not self._has_columns:
            return pd.DataFrame(rows, columns=columns)
        expected = [one for one in self._inputs if isinstance(one, Column)]
        if columns is None or expected[0].name is None:
            columns = [one.name or index for index, one in enumerate(expected)]
            if widths - {len(columns)}:
                raise RequestError(f"The model takes {len(columns)} columns, got {max(widths)}.")
        places = {name: place for place, name in enumerate(columns)}
        made = {}
        for index, column in enumerate(expected):
            name = column.name or index
            place = places.get(name)
            values = [_ABSENT] * len(rows) if place is None else [row[place] for row in rows]
            if not column.required and all(value is _ABSENT for value in values):
                continue
            if place is None:
                raise _missing(name)
            made[name] = _column(column, values)
        return pd.DataFrame(made)

    def _arrays(self, value: Any) -> Any:
        """Return arrays with the types of the signature; by name if they have names."""
        tensors = {one.name: one for one in self._inputs if isinstance(one, TensorInput)}
        if not isinstance(value, dict):
            if self._has_columns:
                if not isinstance(value, list):
                    raise RequestError("Rows must be a list of lists with one value for each column.")
                return self._table(None, value)
            only = next(iter(tensors.values())) if len(tensors) == 1 else None
            array = _array(only, value, "inputs")
            return array if only is None or only.name is None else {only.name: array}
        if self._has_columns:
            names = list(value)
            counts = {len(one) if isinstance(one, list) else -1 for one in value.values()}
            if len(counts) != 1 or -1 in counts:
                raise RequestError("All columns must be lists of the same length.")
            return self._table(names, [list(row) for row in zip(*value.values(), strict=True)])
        missing = [str(name) for name in tensors if name not in value]
        if missing and None not in tensors:
            raise RequestError(f"The inputs {', '.join(missing)} are missing.")
        return {name: _array(tensors.get(name), one, name) for name, one in value.items()}


_ABSENT: Final = object()


def _column(column: Column, values: list[Any]) -> Any:
    """Return the values of a column in its type; no value depends on another."""
    import pandas as pd

    name, kind = column.name, column.type
    for value in values:
        if value is _ABSENT:
            raise _missing(name)
        if not _fits(kind, value):
            raise RequestError(f"The column {name!r} is {kind}, got {json.dumps(value)[:100]}.")
    try:
        if kind in ("float", "double"):
            return np.array([np.nan if value is None else value for value in values], _DTYPES[kind])
        if kind in _DTYPES:
            return np.array(values, _DTYPES[kind])
        if kind == "datetime":
            return pd.Series([pd.Timestamp(value) for value in values], dtype="datetime64[ns]")
        if kind == "binary":
            return pd.Series([base64.b64decode(one, validate=True) for one in values], dtype="object")
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"The column {name!r} is {kind}: {error}.") from error
    return pd.Series(values, dtype="object")


def _missing(name: str | int | None) -> RequestError:
    return RequestError(f"The column {name!r} is missing.")


def _fits(kind: str, value: Any) -> bool:
    if value is None:
        # A missing value among whole numbers would change the type of all rows.
        return kind in ("float", "double", "string", "datetime")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "long":
            bound = _BOUNDS[kind]
            return is_number and value == value // 1 and -bound <= value < bound
        case "float" | "double":
            return is_number
        case "string" | "binary":
            return isinstance(value, str)
        case "datetime":
            return isinstance(value, str | int)
        case _:
            return True


def _array(tensor: TensorInput | None, value: Any, name: str) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError as error:
        raise RequestError(f"The input {name!r} is no array: {error}.") from error
    if array.dtype == object:
        raise RequestError(f"The input {name!r} is no array of numbers, texts or booleans.")
    if tensor is None:
        return array
    # JSON has only one kind of whole numbers.
    is_whole = array.dtype.kind == "i" and np.dtype(tensor.dtype).kind in "uf"
    if not is_whole and not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise RequestError(f"The input {name!r} is {tensor.dtype}, got {array.dtype}.")
    typed = array.astype(tensor.dtype)
    if typed.dtype.kind in "iu" and not np.array_equal(typed, array):
        raise RequestError(f"The input {name!r} is {tensor.dtype}, which cannot hold all of its numbers.")
    array = typed
    sizes = zip(array.shape, tensor.shape, strict=False)
    if array.ndim != len(tensor.shape) or any(expected not in (-1, size) for size, expected in sizes):
        raise RequestError(f"The input {name!r} has the shape {list(tensor.shape)}, got {list(array.shape)}.")
    return array


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(one, str | int | float) for one in value)
        and len(set(value)) == len(value)
    )


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _common_names(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of all records, whose order is that of the columns if there is no signature."""
    kinds = {tuple(record) for record in records}
    if len(kinds) > 1:
        raise RequestError(
            "All records must have the same names in the same order: the model has no signature."
        )
    return kinds.pop()


def _loaded(model: MlflowFolder) -> Callable[..., Any]:
    """Return the function that predicts."""
    logger.info("loading %s runs the code that its pickles name", model.folder.name)
    if importlib.util.find_spec("mlflow") is not None:
        import mlflow.pyfunc

        predict: Callable[..., Any] = mlflow.pyfunc.load_model(str(model.folder)).predict
        return predict
    file = model.pickled_sklearn
    if file is None:
        raise LoadFailed(
            f"the model {model.folder.name} has the flavors {', '.join(model.flavors)}, which only mlflow loads: "
            "pip install mlflow, or serve it in an environment of its own (--system-managed)"
        )
    code = model.python_function.get("code")
    if isinstance(code, str) and code:
        sys.path.insert(0, str(model.folder / code))
    with file.open("rb") as stream:
        estimator = pickle.load(stream)  # noqa: S301  # a model of the operator's own
    function: Callable[..., Any] = getattr(
        estimator, str(model.python_function.get("predict_fn") or "predict")
    )
    return function


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return {}


def _plain(value: Any) -> Any:
    """Return predictions as JSON: tables and series become records, arrays lists, as MLflow writes them."""
    if hasattr(value, "to_frame"):
        value = value.to_frame()
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return [{str(name): _plain(one) for name, one in row.items()} for row in value.to_dict("records")]
    if hasattr(value, "to_numpy"):
        return _plain(value.to_numpy())
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist()) if value.dtype == object else _texts(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.isoformat() if hasattr(value, "isoformat") else value


def _texts(array: np.ndarray | np.generic) -> Any:
    return array.astype(str).tolist() if array.dtype.kind in "Mm" else array.tolist()
