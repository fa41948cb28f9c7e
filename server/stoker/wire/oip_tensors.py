"""The tensors of the Open Inference Protocol v2: the names of their dtypes, their shapes, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stoker.echo import cut
from stoker.errors import InvalidInput, MalformedBody
from stoker.tensors import TensorInfo
from stoker.wire.packed import check_string_count, has_too_many_elements, join_strings, split_strings

__all__ = ["DATATYPES", "MAX_AXES", "check_fit", "checked_shape", "datatype_of", "from_raw", "to_raw"]

DATATYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
"""The protocol's name of each dtype."""

_BY_DTYPE: Final = {
    np.dtype(object if name == "string" else name): datatype for name, datatype in DATATYPES.items()
}

MAX_AXES: Final = 32
"""The most axes of an input: no array has more than 64, and the product of a million sizes takes hours."""


def datatype_of(array: np.ndarray) -> str:
    """Return the protocol's name of an array's dtype."""
    return _BY_DTYPE[array.dtype]


def checked_shape(model: str, info: TensorInfo, datatype: Any, shape: Any) -> tuple[int, ...]:
    """Return the shape that a request gives an input, which must fit the model's.

    Raises:
        MalformedBody: It is no list of sizes, or has too many elements.
        InvalidInput: The datatype or the shape is not the model's.
        BodyTooLarge: There are too many strings.
    """
    expected = DATATYPES[info.dtype]
    if datatype != expected:
        raise InvalidInput(
            f"inference input '{info.name}' data-type is '{cut(datatype)}', but model '{model}' expects '{expected}'"
        )
    if isinstance(shape, list) and len(shape) > MAX_AXES:
        raise MalformedBody(f"the shape of input '{info.name}' has more than {MAX_AXES} axes")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise MalformedBody(f"the shape of input '{info.name}' must be a list of non-negative integers")
    if has_too_many_elements(shape):
        raise MalformedBody(f"the shape of input '{info.name}' has too many elements")
    if info.dtype == "string":
        check_string_count(math.prod(shape))
    sizes = tuple(shape)
    check_fit(model, info, sizes)
    return sizes


def check_fit(model: str, info: TensorInfo, shape: tuple[int, ...]) -> None:
    """Refuse a shape that is none of the model's input.

    Raises:
        InvalidInput: It is not.
    """
    if not info.fits(shape):
        raise InvalidInput(
            f"unexpected shape for input '{info.name}' for model '{model}'. "
            f"Expected {_listed(info.shape)}, got {_listed(shape)}"
        )


def _listed(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def from_raw(model: str, info: TensorInfo, shape: tuple[int, ...], content: bytes | memoryview) -> np.ndarray:
    """Return little-endian bytes in C order as an array; `BYTES` have a length before each element.

    Raises:
        MalformedBody: There are more or fewer bytes than the shape needs.
    """
    count = math.prod(shape)
    if info.dtype == "string":
        try:
            return split_strings(content, count).reshape(shape)
        except ValueError as error:
            raise MalformedBody(f"input '{info.name}' of model '{model}': {error}") from None
    dtype = np.dtype(info.dtype).newbyteorder("<")
    if len(content) != count * dtype.itemsize:
        raise MalformedBody(
            f"input '{info.name}' of model '{model}' has {len(content)} bytes, but its shape {_listed(shape)} needs "
            f"{count * dtype.itemsize}"
        )
    if info.dtype == "bool":
        # Other values than 0 and 1 would be neither of both to numpy.
        return np.frombuffer(content, np.uint8).astype(bool).reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


def to_raw(array: np.ndarray) -> bytes:
    """Inverse of `from_raw`."""
    if array.dtype == object:
        return join_strings(array)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
