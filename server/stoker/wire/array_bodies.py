"""Bodies that are one array: numpy's `.npy` files, which are never unpickled.

Source of the `.npy` format: its description in `numpy.lib.format`, versions 1 and 2.
"""

from __future__ import annotations

import io
import math
import sys
from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput, MalformedBody, quoted
from stoker.tensors import TensorInfo, number_kind
from stoker.wire.packed import check_string_count, has_too_many_elements
from stoker.wire.tensor_json import as_dtype

_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_MAX_HEADER_BYTES: Final = 10_000
_MAX_AXES: Final = 32
_CASTABLE_KINDS: Final = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}


def _numbers(content: bytes | memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) > _MAX_AXES or has_too_many_elements(shape):
        raise MalformedBody("The array has too many axes or elements.")
    needed_bytes = math.prod(shape) * dtype.itemsize
    if len(content) != needed_bytes:
        sizes = ",".join(map(str, shape))
        raise MalformedBody(
            f"An array {dtype.name}[{sizes}] has {needed_bytes} bytes, the body has {len(content)}."
        )
    if dtype.kind == "b":
        # numpy would keep other values than 0 and 1 as they are.
        return np.frombuffer(content, np.uint8).astype(bool).reshape(shape)
    if not needed_bytes:
        return np.empty(shape, dtype)
    return np.frombuffer(content, dtype).reshape(shape)


def _cast_to_input(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Return numbers with the shape of the model's input, cast to its dtype unless that would change their kind."""
    if not info.fits(array.shape):
        raise InvalidInput(f"Expected {info}, got the shape {list(array.shape)}.")
    if number_kind(array.dtype) not in _CASTABLE_KINDS[info.kind]:
        raise InvalidInput(f"Expected {info}, got {array.dtype.name}.")
    return as_dtype(array, info)


def decode_npy(body: bytes, info: TensorInfo) -> np.ndarray:
    """Return the array of a `.npy` file as the model's input; strings are `object` arrays of `bytes`."""
    dtype, fortran, shape, start = _header(body)
    # In Fortran's order the same bytes are the transposed array in C's.
    stored = _numbers(memoryview(body)[start:], dtype, shape[::-1] if fortran else shape)
    array = stored.T if fortran else stored
    if info.dtype == "string":
        return _strings(array, info)
    return _cast_to_input(array, info)


def _header(body: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Return the dtype, whether the array is in Fortran order, the shape, and where the array begins."""
    file = io.BytesIO(body)
    try:
        read = _READERS[np.lib.format.read_magic(file)]
        shape, fortran, dtype = read(file, max_header_size=_MAX_HEADER_BYTES)
    except Exception:  # noqa: BLE001  # numpy evaluates a literal, and makes a dtype of it
        raise MalformedBody("The body is no .npy file of version 1 or 2 whose header can be read.") from None
    if not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        raise MalformedBody("The shape in the header of the .npy file is none.")
    if dtype.kind not in "biufSU" or not dtype.itemsize:
        raise MalformedBody(
            f"Arrays of {quoted(str(dtype))} are not read; send numbers, booleans or strings."
        )
    return dtype, fortran, shape, file.tell()


def _strings(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    if array.dtype.kind not in "SU" or not info.fits(array.shape):
        raise InvalidInput(f"Expected {info}, got {array.dtype.name}{list(array.shape)}.")
    check_string_count(array.size)
    strings = np.empty(array.size, object)
    codes = np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)
    if array.dtype.kind == "U" and np.ascontiguousarray(array).view(codes).max(initial=0) > sys.maxunicode:
        raise MalformedBody("The strings of the .npy file are no Unicode.")
    try:
        strings[:] = [
            item if isinstance(item, bytes) else item.encode() for item in array.reshape(-1).tolist()
        ]
    except ValueError:
        raise MalformedBody("The strings of the .npy file are no Unicode.") from None
    return strings.reshape(array.shape)


def encode_npy(array: np.ndarray) -> bytes:
    """Return an array of numbers or booleans as a `.npy` file of version 1."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
    return file.getvalue()
