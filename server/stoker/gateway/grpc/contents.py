"""Tensors as typed contents of gRPC messages: the elements in the repeated field of their datatype."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput, MalformedBody
from stoker.system.wording import format_count
from stoker.tensors import TensorInfo
from stoker.wire.oip_tensors import datatype_of
from stoker.wire.protobuf import length_delimited
from stoker.wire.tensor_json import as_dtype

_FIELDS: Final = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of each datatype; FP16 and BF16 have none."""

_FIXED_SIZE: Final = {"bool_contents": "?", "fp32_contents": "<f4", "fp64_contents": "<f8"}
"""Fields whose elements all have one size on the wire, and their layout."""


def read_typed(model: str, info: TensorInfo, shape: tuple[int, ...], tensor: Any) -> np.ndarray:
    """Return the contents of an input as an array."""
    field = _FIELDS.get(tensor.datatype)
    if field is None:
        raise InvalidInput(
            f"input '{info.name}' of model '{model}' is {tensor.datatype}: send it in raw_input_contents"
        )
    contents = tensor.contents
    if tensor.HasField("contents"):
        contents.DiscardUnknownFields()
    filled = [descriptor.name for descriptor, _ in contents.ListFields()]
    if any(name != field for name in filled):
        raise MalformedBody(
            f"unexpected explicit tensor data for input tensor '{info.name}' for model '{model}': "
            f"{tensor.datatype} comes in {field}, got {', '.join(filled)}"
        )
    elements = getattr(contents, field)
    count = int(np.prod(shape, dtype=np.int64))
    if len(elements) != count:
        if not filled:
            raise missing_data(model, info.name)
        raise MalformedBody(
            f"input '{info.name}' of model '{model}' has {format_count(len(elements), 'element')}, but its shape "
            f"[{','.join(map(str, shape))}] needs {count}"
        )
    return _array(info, field, contents, elements).reshape(shape)


def missing_data(model: str, name: str) -> MalformedBody:
    """Return the error for an input that has neither typed nor raw contents."""
    return MalformedBody(f"unable to find data for input tensor '{name}' for model '{model}' in request")


def _array(info: TensorInfo, field: str, contents: Any, elements: Any) -> np.ndarray:
    """Return the elements of the only field that is filled, as a vector of the declared dtype."""
    if info.dtype == "string":
        array = np.empty(len(elements), object)
        array[:] = list(elements)
        return array
    if field in _FIXED_SIZE:
        # Packed, their bytes end the message; a hundred times faster than asking for one after the other.
        dtype = np.dtype(_FIXED_SIZE[field])
        size = len(elements) * dtype.itemsize
        packed = contents.SerializeToString()
        return np.frombuffer(packed, dtype, len(elements), len(packed) - size)
    wide = {"int_contents": np.int32, "uint_contents": np.uint32}.get(field, info.dtype)
    return as_dtype(np.fromiter(elements, wide, len(elements)), info)


def has_typed(array: np.ndarray) -> bool:
    """Return whether typed contents can hold an array: those of 16 bits have no field."""
    return datatype_of(array) in _FIELDS


def write_typed(contents: Any, array: np.ndarray) -> None:
    """Write an array that typed contents can hold into empty `InferTensorContents`."""
    field = _FIELDS[datatype_of(array)]
    if field not in _FIXED_SIZE:
        getattr(contents, field).extend(array.reshape(-1).tolist())
    elif array.size:
        packed = np.ascontiguousarray(array, np.dtype(_FIXED_SIZE[field])).tobytes()
        number = contents.DESCRIPTOR.fields_by_name[field].number
        contents.MergeFromString(length_delimited(number, len(packed)) + packed)
