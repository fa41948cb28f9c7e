"""Tensors of the Open Inference Protocol v2: datatypes, shapes, bytes, and where shared memory holds them.

Source of the latter: Triton's system shared memory extension. Sans-I/O: the caller passes what reads a region.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct

from stoker.errors import InvalidInput, MalformedBody, cut, quoted
from stoker.tensors import ModelTensors, TensorInfo, number_kind
from stoker.wire.datatypes import DATATYPES
from stoker.wire.packed import check_string_count, has_too_many_elements, join_strings, split_strings

_BY_DTYPE: Final = {
    np.dtype(object if name == "string" else name): datatype
    for name, datatype in DATATYPES.items()
    if name != "bfloat16"
}

_DTYPES: Final = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_EXACT: Final = 1 << 53
"""Up to this value float64 represents all integers."""

MAX_AXES: Final = 32
"""The most axes of an input: no array has more than 64, and the product of a million sizes takes hours."""


def datatype_of(array: np.ndarray) -> str:
    """Return the protocol's name of an array's dtype."""
    return _BY_DTYPE.get(array.dtype) or DATATYPES[array.dtype.name]


def checked_shape(model: str, info: TensorInfo, datatype: Any, shape: Any) -> tuple[int, ...]:
    """Return the shape that a request gives an input, which must fit the model's."""
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
    """Raise InvalidInput unless a shape fits the model's input."""
    if not info.fits(shape):
        raise InvalidInput(
            f"unexpected shape for input '{info.name}' for model '{model}'. "
            f"Expected {_listed(info.shape)}, got {_listed(shape)}"
        )


def as_sent(model: str, name: str, datatype: Any) -> TensorInfo:
    """Return an input of an estimator as its request describes it; `fitted_inputs` checks if the model takes it."""
    dtype = _DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise InvalidInput(
            f"inference input '{name}' data-type is '{cut(datatype)}', but model '{model}' expects one of "
            f"{', '.join(_DTYPES)}"
        )
    return TensorInfo(name, dtype, (), any_rank=True, nullable=True)


def fitted_inputs(
    model: str, tensors: ModelTensors, arrays: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Return the inputs of an estimator, converted from the tensors of a request.

    The only input may have any name, as in the clients of KServe and MLServer. A table may come as one tensor per
    column, `[rows]` or `[rows, 1]`, also where the model declares one matrix; and one matrix may stand for all
    columns of a table. Other numbers are converted if no digit is lost.
    """
    infos = tensors.inputs
    first = infos[0]
    if first.labels and arrays.keys() == {*first.labels} != {first.name}:
        columns = {name: TensorInfo(name, first.dtype, (-1,)) for name in first.labels}
        made = {name: _fitted(model, columns[name], array) for name, array in arrays.items()}
        if len({len(array) for array in made.values()}) > 1:
            raise InvalidInput.different_rows((name, len(array)) for name, array in made.items())
        return {first.name: np.stack([made[name] for name in first.labels], axis=1)}
    if len(arrays) == 1:
        (array,) = arrays.values()
        if len(infos) == 1:
            return {first.name: _fitted(model, first, array)}
        order = next(
            (
                names
                for names in (tensors.table, tuple(info.name for info in infos))
                if array.ndim == 2 and array.shape[1] == len(names)
            ),
            (),
        )
        # Copies: a codec remembers the positions of whole tensors only.
        arrays = {name: np.ascontiguousarray(array[:, place]) for place, name in enumerate(order)} or arrays
    known = {info.name for info in infos}
    if unknown := [name for name in arrays if name not in known and name not in tensors.table]:
        raise InvalidInput(
            f"unexpected inference input {quoted(unknown[0])} for model '{model}', which takes a tensor for each of "
            f"the columns {', '.join(info.name for info in infos)}"
        )
    return {info.name: _fitted(model, info, arrays[info.name]) for info in infos if info.name in arrays}


def _fitted(model: str, info: TensorInfo, array: np.ndarray) -> np.ndarray:
    """Convert an array to an input of an estimator."""
    if array.shape[1:] == (1,) and info.shape == (-1,):
        array = array[:, 0]
    check_fit(model, info, array.shape)
    wanted, kind = np.dtype(object if info.dtype == "string" else info.dtype), number_kind(array.dtype)
    if array.dtype == wanted:
        return array
    if wanted.kind == "f" and kind in "bfiu":
        if kind in "iu" and array.size and not -_EXACT <= int(array.min()) <= int(array.max()) <= _EXACT:
            raise InvalidInput(
                f"inference input '{info.name}' of model '{model}' has an integer that {datatype_of(array)} holds "
                f"and {DATATYPES[info.dtype]} does not"
            )
        return array.astype(wanted)
    if wanted.kind == "b" and kind in "iu" and np.isin(array, (0, 1)).all():
        return array.astype(wanted)
    raise InvalidInput(
        f"inference input '{info.name}' data-type is '{datatype_of(array)}', but model '{model}' expects "
        f"'{DATATYPES[info.dtype]}'"
    )


def _listed(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def from_raw(model: str, info: TensorInfo, shape: tuple[int, ...], content: bytes | memoryview) -> np.ndarray:
    """Return little-endian bytes in C order as an array; `BYTES` have a length before each element."""
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
        # numpy would keep other values than 0 and 1 as they are.
        return np.frombuffer(content, np.uint8).astype(bool).reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


def to_raw(array: np.ndarray) -> bytes:
    """Inverse of `from_raw`."""
    if array.dtype == object:
        return join_strings(array)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


_REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_SIZE: Final = "shared_memory_byte_size"
_MOST: Final = (1 << 63) - 1


class RegionSpan(Struct, frozen=True):
    """A part of a registered region: its bytes from `offset_bytes` on."""

    region: str
    offset_bytes: int
    size_bytes: int


class RegionReader(Protocol):
    """Reads the regions that one request may use."""

    def read(self, span: RegionSpan) -> memoryview:
        """Return a copy of a part of a region."""


def span_of(parameters: Mapping[str, Any]) -> RegionSpan | None:
    """Return which part of a region the parameters of an input or an output name; None if they name no region."""
    region = parameters.get(_REGION)
    if region is None:
        if _OFFSET in parameters or _SIZE in parameters:
            raise MalformedBody(f"'{_OFFSET}' and '{_SIZE}' need '{_REGION}'")
        return None
    if not isinstance(region, str) or not region:
        raise MalformedBody(f"'{_REGION}' must be the name of a region")
    numbers = [parameters.get(_OFFSET, 0), parameters.get(_SIZE)]
    for name, number in zip((_OFFSET, _SIZE), numbers, strict=True):
        if type(number) is not int or not 0 <= number <= _MOST:
            raise MalformedBody(f"'{name}' must be a non-negative number of bytes")
    return RegionSpan(region, *numbers)


def from_region(
    model: str, info: TensorInfo, shape: tuple[int, ...], span: RegionSpan, regions: RegionReader
) -> np.ndarray:
    """Return an input whose data are in a region; the model's name is for error messages."""
    if info.dtype != "string":
        size_bytes = math.prod(shape) * np.dtype(info.dtype).itemsize
        if span.size_bytes != size_bytes:
            raise MalformedBody(
                f"input '{info.name}' of model '{model}' has {span.size_bytes} bytes in shared memory, "
                f"but its shape [{','.join(map(str, shape))}] needs {size_bytes}"
            )
    return from_raw(model, info, shape, regions.read(span))
