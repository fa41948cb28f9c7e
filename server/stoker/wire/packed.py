"""Named tensors packed into one variable row, for models whose rows have no fixed size.

A head of JSON has name, dtype and shape of each tensor; their contents follow, each aligned to 8 bytes, in native
byte order and C order. Strings are stored as in the Open Inference Protocol: a 32-bit length before each. The name of
the model's signature is at the end, if the request names one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from stoker.errors import BodyTooLarge

MISSING: Final = b"\xff"
"""Stands for a missing string in a table's column: no UTF-8 text is encoded like this."""

FACTS: Final = ""
"""The name in a packed request of an `object[1]` of JSON: an object with the `id` of the request, its `parameters`
and the names of the `outputs` that it asks for. Only models with `ModelTensors.takes_facts` get it."""

# The lengths of the head and of the signature's name.
_HEAD: Final = struct.Struct("=II")
_LENGTH: Final = struct.Struct("<I")
_ALIGN: Final = 8
_MAX_STRINGS: Final = 1 << 20
_MAX_ELEMENTS: Final = 1 << 40
_MAX_EMPTY: Final = 1 << 20
# Equal shapes have equal heads; a caller who sends thousands of shapes slows down only their own requests.
_REMEMBERED: Final = 256


def pack(tensors: Mapping[str, np.ndarray], signature: str = "") -> bytes:
    """Return tensors as one row; an empty `signature` means the default one.

    Numbers, booleans, or `object` arrays of `bytes`, by name.
    """
    described, parts = [], []
    for name, array in tensors.items():
        content = join_strings(array) if array.dtype == object else array.tobytes()
        described.append((name, array.dtype, array.shape, len(content)))
        parts += [content, bytes(-len(content) % _ALIGN)]
    behind = signature.encode()
    return b"".join((_head(tuple(described), len(behind)), *parts, behind))


@lru_cache(_REMEMBERED)
def _head(described: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...], behind_bytes: int) -> bytes:
    """Return the head of a row with tensors of these names, dtypes, shapes and sizes in bytes."""
    head = orjson.dumps(
        [(name, "string" if dtype.kind == "O" else dtype.name, *more) for name, dtype, *more in described]
    )
    head += b" " * (-len(head) % _ALIGN)
    return _HEAD.pack(len(head), behind_bytes) + head


def signature_of(data: bytes | memoryview) -> str:
    """Return the signature that a packed row is for; empty if it names none."""
    _, name_bytes = _HEAD.unpack_from(data)
    return bytes(data[len(data) - name_bytes :]).decode()


def unpack(data: bytes | bytearray) -> dict[str, np.ndarray]:
    """Inverse of `pack`; arrays of numbers are views of `data`, which can be written in a bytearray."""
    head_bytes, _ = _HEAD.unpack_from(data)
    start = _HEAD.size + head_bytes
    tensors: dict[str, np.ndarray] = {}
    for name, dtype, shape, size in _described(bytes(data[_HEAD.size : start])):
        if dtype is None:
            tensors[name] = split_strings(bytes(data[start : start + size]), math.prod(shape)).reshape(shape)
        else:
            tensors[name] = np.ndarray(shape, dtype, data, start)
        start += size + -size % _ALIGN
    return tensors


@lru_cache(_REMEMBERED)
def _described(head: bytes) -> tuple[tuple[str, np.dtype[Any] | None, tuple[int, ...], int], ...]:
    """Return name, dtype (None for strings), shape and size in bytes of each tensor of a row with this head."""
    return tuple(
        (name, None if dtype == "string" else np.dtype(dtype), tuple(shape), size)
        for name, dtype, shape, size in orjson.loads(head)
    )


def join_strings(array: np.ndarray) -> bytes:
    """Return the elements of an `object` array of `bytes`, each after its length (32 bits, little-endian)."""
    elements = array.reshape(-1).tolist()
    lengths = map(_LENGTH.pack, map(len, elements))
    return b"".join(chain.from_iterable(zip(lengths, elements, strict=True)))


def has_too_many_elements(shape: Sequence[int]) -> bool:
    """Return whether a shape is larger than any content or, with a size of 0, than a model should compute with.

    The content of an array is bounded with the body; other sizes next to a size of 0 are not.
    """
    return math.prod(size for size in shape if size) > (_MAX_ELEMENTS if all(shape) else _MAX_EMPTY)


def check_string_count(count: int) -> None:
    """Raise BodyTooLarge for more than a million strings: splitting them would block other requests."""
    if count > _MAX_STRINGS:
        raise BodyTooLarge(
            f"{count} strings are more than the {_MAX_STRINGS} that are read at once; send them in parts."
        )


def split_strings(data: bytes | memoryview, count: int) -> np.ndarray:
    """Inverse of `join_strings`: `object[count]` of `bytes`; raise ValueError for any other number of them."""
    elements: list[bytes] = []
    start, end = 0, len(data)
    # Slicing bytes takes half as long as slicing a view.
    content = bytes(data)
    unpack = _LENGTH.unpack_from
    prefix_bytes = _LENGTH.size
    while start < end and len(elements) < count:
        if end - start < prefix_bytes:
            raise ValueError("the data ends within the length of a string")
        begin = start + prefix_bytes
        start = begin + unpack(content, start)[0]
        if start > end:
            raise ValueError("the data ends within a string")
        elements.append(content[begin:start])
    if start != end or len(elements) != count:
        raise ValueError(f"expected {count} strings in {end} bytes, found {len(elements)} in {start}")
    array = np.empty(count, object)
    array[:] = elements
    return array
