"""Arguments that are numpy arrays."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stoker.wire.nested_lists import RaggedLists, elements_of
from stoker_azure.inference_schema.standard import AbstractParameterType

__all__ = ["NumpyParameterType"]

_FORMATS: Final = {"float16": "float", "float32": "float", "float64": "double"}
_INTEGERS: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_MOST_PADDING: Final = 16
"""Characters that an array of texts may have for each that the caller has sent, beside `_LITTLE_TEXT`."""
_LITTLE_TEXT: Final = 1 << 20
_TIME_UNITS: Final = {
    "years": "Y",
    "months": "M",
    "weeks": "W",
    "days": "D",
    "hours": "h",
    "minutes": "m",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
    "picoseconds": "ps",
    "femtoseconds": "fs",
    "attoseconds": "as",
}


class NumpyParameterType(AbstractParameterType):
    """An array with the dtype of the sample, its rank, and its shape but for the first dimension."""

    def __init__(
        self, sample_input: np.ndarray, enforce_column_type: bool = True, enforce_shape: bool = True
    ) -> None:
        """Describe an array.

        Args:
            enforce_column_type: Convert to the sample's dtype; else numpy chooses one.
            enforce_shape: Refuse other ranks, and other sizes of all dimensions but the first.

        Raises:
            TypeError: The sample is no array.
        """
        if not isinstance(sample_input, np.ndarray):
            raise TypeError("Invalid sample input provided, must provide a sample Numpy array.")
        super().__init__(sample_input)
        self.enforce_column_type = enforce_column_type
        self.enforce_shape = enforce_shape

    def deserialize_input(self, input_data: Any) -> np.ndarray:
        """Return the array that nested lists describe; an array is returned as it is.

        Records are objects with the names of the fields, or lists in their order. Times are ISO 8601 texts, time
        differences are texts like `5 days`.

        Raises:
            ValueError: It is no list, has another shape than the sample, or an item has another type.
        """
        if isinstance(input_data, np.ndarray):
            return input_data
        if not isinstance(input_data, list):
            raise ValueError("Invalid input format: expected an array of items.")
        sample = self.sample_input
        if not self.enforce_column_type:
            _check_texts(input_data)
            array = np.array(input_data)
        elif _is_plain(sample.dtype):
            array = np.array(input_data, sample.dtype)
        else:
            array = np.array(_items(input_data, sample.dtype, sample.ndim), sample.dtype)
        if self.enforce_shape:
            _check_shape(array.shape, sample.shape)
        return array

    def input_to_swagger(self) -> dict[str, Any]:
        """Return the schema: arrays nested as the sample's dimensions are.

        Raises:
            TypeError: Swagger has no word for the dtype.
            ValueError: The sample has no dimension.
        """
        if self.sample_input.ndim == 0:
            raise ValueError("Invalid sample input provided, the sample Numpy array has no dimension.")
        return {
            **_array_schema(_item_schema(self.sample_input.dtype), self.sample_input.ndim),
            "example": _example(self.sample_input, self.sample_input.dtype),
            "format": "numpy.ndarray",
        }


def _check_texts(data: list[Any]) -> None:
    """Refuse texts of which numpy would make an array far longer than they are: it makes all as long as the longest.

    Raises:
        ValueError: They are.
    """
    try:
        items, types, _ = elements_of(data)
    except RaggedLists:
        return  # numpy says so, in its own words
    # Beside anything else texts become objects, of their own length.
    if str not in types or not types <= {str, int, float, bool}:
        return
    lengths = [len(item) for item in items if isinstance(item, str)]
    if max(lengths) * len(items) > _MOST_PADDING * sum(lengths) + _LITTLE_TEXT:
        raise ValueError(
            f"Invalid input array: a text of {max(lengths)} characters among {len(items)} items, most of them much "
            "shorter; an array of texts has room for the longest in each item"
        )


def _is_plain(dtype: np.dtype) -> bool:
    """Whether numpy converts what JSON gives for this dtype by itself."""
    return dtype.names is None and dtype.kind not in "mM"


def _items(data: Any, dtype: np.dtype, depth: int) -> Any:
    if depth and isinstance(data, list):
        return [_items(item, dtype, depth - 1) for item in data]
    if dtype.names is not None:
        return _record(data, dtype, dtype.names)
    if dtype.kind == "M":
        if data is None:
            return np.array("NaT", dtype)[()]
        # The sample's schema shows a comma before the fraction of a second.
        return np.datetime64(data.replace(",", ".") if isinstance(data, str) else data)
    if dtype.kind == "m" and data is not None:
        return _time_difference(str(data))
    return data


def _record(data: Any, dtype: np.dtype, names: Sequence[str]) -> tuple[Any, ...]:
    keys: Sequence[Any] = names if isinstance(data, dict) else range(len(names))
    if isinstance(data, dict | list | tuple):
        with contextlib.suppress(LookupError):
            return tuple(_items(data[key], dtype[name], 0) for key, name in zip(keys, names, strict=True))
    raise ValueError(
        f"Invalid input array: an item is no record of the fields {', '.join(names)}: {data!r:.100}"
    )


def _time_difference(text: str) -> np.timedelta64:
    problem = f"Invalid numpy.timestamp64 value specified: {text}. "
    match text.split(None, 1):
        case [value, unit] if unit.lower() in _TIME_UNITS:
            return np.timedelta64(int(value), _TIME_UNITS[unit.lower()])  # type: ignore[call-overload,no-any-return]
        case [_, _]:
            raise ValueError(f"{problem}Unrecognized time unit code")
        case _:
            raise ValueError(f"{problem}Format should be <value> <time_unit_code>")


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if len(shape) != len(expected):
        raise ValueError(
            f"Invalid input array: an array with {len(expected)} dimensions is expected; "
            f"input has {len(shape)} [shape {shape}]"
        )
    for dimension in range(1, len(expected)):
        if shape[dimension] != expected[dimension]:
            raise ValueError(
                f"Invalid input array: array has size {shape[dimension]} on dimension #{dimension}, "
                f"while expected value is {expected[dimension]}"
            )


def _array_schema(item: dict[str, Any], dimensions: int) -> dict[str, Any]:
    for _ in range(dimensions):
        item = {"type": "array", "items": item}
    return item


def _item_schema(dtype: np.dtype) -> dict[str, Any]:
    if dtype.names is not None:
        return {"type": "object", "properties": {name: _item_schema(dtype[name]) for name in dtype.names}}
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _array_schema(_item_schema(base), len(shape))
    if dtype.name in _INTEGERS:
        return {"type": "integer", "format": dtype.name}
    if dtype.name in _FORMATS:
        return {"type": "number", "format": _FORMATS[dtype.name]}
    match dtype.kind:
        case "b":
            return {"type": "boolean"}
        case "O":
            return {"type": "object"}
        case "U":
            return {"type": "string"}
        case "S" | "V":
            return {"type": "string", "format": "binary"}
        case "M":
            return {"type": "string", "format": "date-time"}
        case "m":
            return {"type": "string", "format": "timedelta"}
    raise TypeError(f"We currently do not support extracting schema from data of type {dtype.name}")


def _example(value: Any, dtype: np.dtype) -> Any:
    if isinstance(value, np.ndarray):
        if dtype.kind in "biuf":
            return value.tolist()
        return [_example(item, value.dtype) for item in value]
    if dtype.names is not None:
        return {name: _example(value[name], dtype[name]) for name in dtype.names}
    match dtype.kind:
        case "b" | "i" | "u" | "f":
            return value.item()
        case "S" | "V":
            return base64.b64encode(bytes(value)).decode()
        case "M":
            moment = value.astype("datetime64[us]").item()
            if isinstance(moment, dt.datetime):
                return moment.strftime("%Y-%m-%d %H:%M:%S,%f")
    return str(value)
