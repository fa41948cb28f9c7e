"""Tensors as TensorFlow's `TensorProto`: its bytes to arrays, and arrays to its bytes.

Numbers that lie on the wire as they lie in memory (`tensor_content`, floats, doubles) are read where they are; the
library would copy them.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from stoker.echo import cut
from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody
from stoker.gateway.grpc.messages import SERVING, message
from stoker.gateway.protocols.tfs import DTYPES
from stoker.tensors import TensorInfo
from stoker.wire.oip_tensors import MAX_AXES, check_fit, from_raw
from stoker.wire.packed import check_string_count, has_too_many_elements
from stoker.wire.protobuf import BYTES, MalformedMessage, field, fields_of
from stoker.wire.tensor_json import as_dtype

__all__ = ["TensorBytes", "read_tensor", "tensor_bytes"]

_Proto: Final = message("TensorProto", SERVING)
_TYPES: Final[dict[str, int]] = {
    name: _Proto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name[word].number
    for name, word in DTYPES.items()
}
_WORDS: Final = {number: DTYPES[name] for name, number in _TYPES.items()}
_FIELDS: Final = {
    "bool": "bool_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "int8": "int_val",
    "int16": "int_val",
    "int32": "int_val",
    "int64": "int64_val",
    "float16": "half_val",
    "float32": "float_val",
    "float64": "double_val",
    "string": "string_val",
}
"""The field of the elements of each dtype."""

_CONTENT: Final = 4
_FLAT: Final = {"float32": (5, "<f4"), "float64": (6, "<f8")}
"""Fields that lie on the wire as an array does, and how."""

_MAX_PARTS: Final = 64
"""A tensor of more fields has an element in each, as the library reads them."""
_MAX_TYPED_BYTES: Final = 8 << 20


class TensorBytes(NamedTuple):
    """Where a `TensorProto` lies."""

    message: bytes
    begin: int
    end: int


class _Read(NamedTuple):
    """What a `TensorProto` says: its contents where they lie, and all else as the library has read it."""

    content: memoryview | None
    flat: dict[int, list[memoryview]]
    rest: Any


def read_tensor(model: str, info: TensorInfo, given: TensorBytes) -> np.ndarray:
    """Return a tensor as an array; one of numbers may be a view of the message, and cannot be written.

    As TensorFlow has it, fewer elements than the shape needs are followed by repetitions of the last one, or by zeros
    where there is none.

    Args:
        model: The model's name, for error messages.
        info: The input that it is for.
        given: The tensor.

    Raises:
        MalformedBody: It cannot be read, or its contents do not have the size of its shape.
        InvalidInput: Its dtype or its shape is not the input's, or a number does not fit.
        BodyTooLarge: It has too many elements one by one.
    """
    read = _parsed(info, given)
    shape = _checked_shape(model, info, read.rest)
    if read.content is not None:
        if info.dtype == "string":
            raise InvalidInput(f"input '{info.name}' of model '{model}': send strings as string_val")
        return from_raw(model, info, shape, read.content)
    elements = _elements(info, read)
    count = math.prod(shape)
    if len(elements) > count:
        raise MalformedBody(
            f"input '{info.name}' of model '{model}' has {len(elements)} elements, but its shape {list(shape)} "
            f"needs {count}"
        )
    if len(elements) < count:
        elements = _filled(info, elements, count)
    return elements.reshape(shape)


def _parsed(info: TensorInfo, given: TensorBytes) -> _Read:
    data, begin, end = given
    try:
        parts = list(islice(fields_of(data, begin, end), _MAX_PARTS + 1))
    except (MalformedMessage, IndexError):
        raise MalformedBody(f"the tensor of input '{info.name}' cannot be read") from None
    view = memoryview(data)
    content: memoryview | None = None
    flat: dict[int, list[memoryview]] = {5: [], 6: []}
    rest = [view[begin:end]]
    if len(parts) <= _MAX_PARTS:
        rest, at = [], begin
        for number, wire, _, start, stop in parts:
            if wire == BYTES and number == _CONTENT:
                # An empty one is none.
                content = view[start:stop] if stop > start else None
            elif wire == BYTES and number in flat:
                flat[number].append(view[start:stop])
            else:
                rest.append(view[at:stop])
            at = stop
    if sum(map(len, rest)) > _MAX_TYPED_BYTES:
        raise BodyTooLarge(
            f"elements one by one above {_MAX_TYPED_BYTES >> 20} MiB are not read: send input '{info.name}' as "
            "tensor_content"
        )
    try:
        return _Read(content, flat, _Proto.FromString(b"".join(rest)))
    except DecodeError:
        raise MalformedBody(f"the tensor of input '{info.name}' cannot be read") from None


def _checked_shape(model: str, info: TensorInfo, proto: Any) -> tuple[int, ...]:
    if proto.dtype != _TYPES[info.dtype]:
        came = _WORDS.get(proto.dtype, f"type {cut(str(proto.dtype))}")
        raise InvalidInput(f"input '{info.name}' is {came}, but model '{model}' expects {DTYPES[info.dtype]}")
    dims = proto.tensor_shape.dim
    if proto.tensor_shape.unknown_rank or len(dims) > MAX_AXES:
        raise MalformedBody(f"the shape of input '{info.name}' is unknown, or has more than {MAX_AXES} axes")
    shape = tuple(dim.size for dim in dims)
    if min(shape, default=0) < 0 or has_too_many_elements(shape):
        raise MalformedBody(f"the shape of input '{info.name}' has negative sizes, or too many elements")
    if info.dtype == "string":
        check_string_count(math.prod(shape))
    check_fit(model, info, shape)
    return shape


def _elements(info: TensorInfo, read: _Read) -> np.ndarray:
    values = getattr(read.rest, _FIELDS[info.dtype])
    if info.dtype in _FLAT:
        return _flat_elements(info, read, values)
    if info.dtype == "string":
        check_string_count(len(values))
        texts = np.empty(len(values), object)
        texts[:] = list(values)
        return texts
    if info.dtype == "float16":
        halves = as_dtype(np.fromiter(values, np.int32, len(values)), TensorInfo(info.name, "uint16", (-1,)))
        return halves.view(np.float16)
    wide = np.int32 if _FIELDS[info.dtype] == "int_val" else info.dtype
    return as_dtype(np.fromiter(values, wide, len(values)), info)


def _flat_elements(info: TensorInfo, read: _Read, values: Any) -> np.ndarray:
    number, layout = _FLAT[info.dtype]
    packed = read.flat[number]
    if len(packed) == 1 and not values:
        joined: bytes | memoryview = packed[0]
    else:
        # Who mixes forms has no order to rely on but that of each.
        joined = b"".join(packed) + np.fromiter(values, layout, len(values)).tobytes()
    if len(joined) % np.dtype(layout).itemsize:
        raise MalformedBody(f"the elements of input '{info.name}' end within one")
    return np.frombuffer(joined, layout)


def _filled(info: TensorInfo, elements: np.ndarray, count: int) -> np.ndarray:
    if count * max(elements.itemsize, 1) > _MAX_TYPED_BYTES:
        raise BodyTooLarge(
            f"input '{info.name}' has fewer elements than its shape, which is filled up to "
            f"{_MAX_TYPED_BYTES >> 20} MiB: send it as tensor_content"
        )
    nothing: Any = b"" if info.dtype == "string" else 0
    filled = np.empty(count, elements.dtype)
    filled[: len(elements)] = elements
    filled[len(elements) :] = elements[-1] if len(elements) else nothing
    return filled


def tensor_bytes(array: np.ndarray) -> bytes:
    """Return an array as a `TensorProto`, with its elements in the field of their dtype, as TensorFlow Serving does.

    Args:
        array: Numbers, or an `object` array of `bytes`.
    """
    name = "string" if array.dtype == object else array.dtype.name
    proto = _Proto(dtype=_TYPES[name])
    # There even for a scalar, which has no axes.
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if name in _FLAT:
        number, layout = _FLAT[name]
        content = np.ascontiguousarray(array, layout).tobytes()
        head: bytes = proto.SerializeToString()
        return head + field(number, content) if content else head
    values = array.reshape(-1)
    if name == "float16":
        values = np.ascontiguousarray(values).view(np.uint16)
    getattr(proto, _FIELDS[name]).extend(values.tolist())
    whole: bytes = proto.SerializeToString()
    return whole
