"""The large weights of an ONNX file, read into memory once and handed to ONNX Runtime.

ONNX Runtime reads a file into strings that grow by doubling, and copies the weights out of them. That takes more than
three times the file in new pages of memory, and the pages are most of what a load costs. Here weights are read once
and ONNX Runtime copies them once; it optimises the same graph with the same numbers.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from stoker.wire.protobuf import BYTES, VARINT, FileBytes, field, fields_of, packed, signed

_LEAST_BYTES: Final = 1 << 16
"""Smaller weights stay in the graph."""
_ALIGNMENT: Final = 64
_GRAPH, _INITIALIZER = 7, 5
_DIMENSION, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_ELSEWHERE: Final = field(_EXTERNAL, field(1, b"location") + field(2, b"memory")) + bytes([_LOCATION << 3, 1])
_ITEM_BYTES: Final = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""By the numbers of ONNX the size of an element."""


@dataclass(frozen=True, slots=True)
class SeparateWeights:
    """A model whose large weights lie beside its graph.

    Attributes:
        graph: The model without them, serialised.
        values: The weights by name: needed until a session is opened, which copies them.
    """

    graph: bytes
    values: dict[str, onnxruntime.OrtValue]


@dataclass(frozen=True, slots=True)
class _Weight:
    name: str
    onnx_type: int
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


def separate_weights(path: Path) -> SeparateWeights | None:
    """Read a model's graph and its large weights apart; None if it has none, or cannot be read so."""
    with suppress(OSError, ValueError, IndexError), path.open("rb") as file:
        data, weights = FileBytes(file.fileno()), dict[str, _Weight]()
        graph = b"".join(_without_weights(data, weights))
        if weights:
            return SeparateWeights(graph, _read_values(file.fileno(), weights))
    return None


def _without_weights(data: FileBytes, weights: dict[str, _Weight]) -> Iterator[bytes]:
    """Yield the parts of a model without its large weights, which are added to `weights`."""
    last = 0
    for number, wire, _, begin, end in fields_of(data, 0, len(data)):
        if (number, wire) == (_GRAPH, BYTES):
            yield field(_GRAPH, b"".join(_graph_parts(data, begin, end, weights)))
        else:
            yield data[last:end]
        last = end


def _graph_parts(data: FileBytes, begin: int, end: int, weights: dict[str, _Weight]) -> Iterator[bytes]:
    last = begin
    for number, wire, _, start, stop in fields_of(data, begin, end):
        found = None
        if (number, wire) == (_INITIALIZER, BYTES) and stop - start >= _LEAST_BYTES:
            found = _find_weight(data, start, stop)
        if found is None:
            yield data[last:stop]
        else:
            weight, head = found
            if weight.name in weights:
                raise ValueError(f"two initializers are named {weight.name!r}")
            weights[weight.name] = weight
            yield field(_INITIALIZER, head + _ELSEWHERE)
        last = stop


def _find_weight(data: FileBytes, begin: int, end: int) -> tuple[_Weight, bytes] | None:
    """Where the bytes of an initializer lie, and its other fields; None if they are not plain bytes."""
    name, onnx_type, raw = "", 0, (0, 0)
    shape: list[int] = []
    parts, last = [], begin
    for number, wire, value, start, stop in fields_of(data, begin, end):
        if number == _RAW:
            raw = start, stop
        elif number in (_EXTERNAL, _LOCATION):
            return None
        else:
            parts.append(data[last:stop])
        if number == _DIMENSION:
            shape += [signed(value)] if wire == VARINT else packed(data, start, stop)
        elif number == _TYPE:
            onnx_type = value
        elif number == _NAME:
            name = data[start:stop].decode()
        last = stop
    size_bytes = raw[1] - raw[0]
    if size_bytes < _LEAST_BYTES or size_bytes != math.prod(shape) * _ITEM_BYTES.get(onnx_type, 0):
        return None
    return _Weight(name, onnx_type, tuple(shape), raw[0], size_bytes), b"".join(parts)


def _read_values(descriptor: int, weights: dict[str, _Weight]) -> dict[str, onnxruntime.OrtValue]:
    """Read weights into memory that is freed with the values; raises OSError or IndexError."""
    offsets, total_bytes = [], 0
    for weight in weights.values():
        offsets.append(total_bytes)
        total_bytes += -(-weight.size_bytes // _ALIGNMENT) * _ALIGNMENT
    memory = mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        # A kernel without them refuses.
        memory.madvise(mmap.MADV_HUGEPAGE)
    values = {}
    for weight, offset in zip(weights.values(), offsets, strict=True):
        place = memoryview(memory)[offset : offset + weight.size_bytes]
        _read_at(descriptor, place, weight.begin)
        # Only the size of an element matters here: ONNX's type says what the bits mean.
        array = np.frombuffer(place, f"u{_ITEM_BYTES[weight.onnx_type]}").reshape(weight.shape)
        values[weight.name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, weight.onnx_type)
    return values


def _read_at(descriptor: int, place: memoryview, begin: int) -> None:
    """Fill memory from an offset of a file; a call of the system reads 2 GiB at most."""
    done = 0
    while done < len(place):
        count = os.preadv(descriptor, [place[done:]], begin + done)
        if not count:
            raise IndexError("the file has become shorter")
        done += count
