"""The large weights of an ONNX file, read into memory once, where ONNX Runtime uses them.

ONNX Runtime reads a file into strings that grow by doubling, and copies the weights out of them. That takes more than
three times the file in new pages of memory, and the pages are most of the cost of a load. Here weights are read once.
ONNX Runtime uses them in place. It makes packed copies of some, and releases the originals. If its optimisation needs
their values, for example to fold a normalisation into a convolution, it copies them.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime
from msgspec import Struct

from stoker.wire.protobuf import BYTES, VARINT, FileBytes, field, fields_of, packed, signed

_LEAST_BYTES: Final = 1 << 16
"""Smaller weights stay in the graph."""
_ALIGNMENT: Final = 64
_GRAPH, _INITIALIZER = 7, 5
_DIMENSION, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_NUMPY_TYPES: Final = {
    1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 10: "f2", 11: "f8", 12: "u4", 13: "u8",
}  # fmt: skip
"""Types by their numbers in ONNX; weights of other types stay in the graph."""
_HUGE_BYTES: Final = 2 << 20
"""A huge page."""
_FAR_BYTES: Final = 1 << 60
"""Behind the end of any file."""

UseWeights = Callable[[onnxruntime.SessionOptions], list[onnxruntime.OrtValue]]
"""Adds weights to the options of a session; returns values that have to live until it is open."""


class SeparateWeights(Struct, frozen=True):
    """A model whose large weights lie beside its graph.

    Attributes:
        graph: The model without them, serialised; it refers to a place that cannot be read.
        arrays: The weights by name.
    """

    graph: bytes
    arrays: dict[str, np.ndarray]

    @property
    def uses(self) -> Sequence[UseWeights]:
        """The functions that give the weights to a session, the best one first."""
        if hasattr(onnxruntime.OrtValue, "from_dlpack"):
            return (self._use_in_place, self._use_copies)
        # ONNX Runtime 1.25 and older.
        return (self._use_copies,)

    def _use_in_place(self, options: onnxruntime.SessionOptions) -> list[onnxruntime.OrtValue]:
        """Let the session own the weights that it uses; opening it fails if the optimisation needs their values."""
        # Only ONNX Runtime knows the weights that it has packed; with DLPack it frees their memory.
        values = [onnxruntime.OrtValue.from_dlpack(array) for array in self.arrays.values()]
        for name, value in zip(self.arrays, values, strict=True):
            options.add_initializer(name, value)
        return values

    def _use_copies(self, options: onnxruntime.SessionOptions) -> list[onnxruntime.OrtValue]:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self.arrays.values()]
        options.add_external_initializers(list(self.arrays), values)
        return values


class _Weight(Struct, frozen=True):
    name: str
    onnx_type: int
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


def separate_weights(path: Path) -> SeparateWeights | None:
    """Read a model's graph and its large weights separately; None if it has none, or cannot be read."""
    with suppress(OSError, ValueError, IndexError), path.open("rb") as file:
        data, weights = FileBytes(file.fileno()), dict[str, _Weight]()
        graph = b"".join(_without_weights(data, weights, _unreadable_place(path)))
        if weights:
            return SeparateWeights(graph, _read_arrays(file.fileno(), weights))
    return None


def _unreadable_place(path: Path) -> bytes:
    """Return the fields of an initializer whose bytes lie behind the end of a file, so that reading them fails."""
    facts = {b"location": path.name.encode(), b"offset": str(_FAR_BYTES).encode()}
    entries = [field(_EXTERNAL, field(1, name) + field(2, value)) for name, value in facts.items()]
    return b"".join(entries) + bytes([_LOCATION << 3, 1])


def _without_weights(data: FileBytes, weights: dict[str, _Weight], place: bytes) -> Iterator[bytes]:
    """Yield the parts of a model without its large weights, which are added to `weights`."""
    last = 0
    for number, wire, _, begin, end in fields_of(data, 0, len(data)):
        if (number, wire) == (_GRAPH, BYTES):
            yield field(_GRAPH, b"".join(_graph_parts(data, begin, end, weights, place)))
        else:
            yield data[last:end]
        last = end


def _graph_parts(
    data: FileBytes, begin: int, end: int, weights: dict[str, _Weight], place: bytes
) -> Iterator[bytes]:
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
            yield field(_INITIALIZER, head + place)
        last = stop


def _find_weight(data: FileBytes, begin: int, end: int) -> tuple[_Weight, bytes] | None:
    """Return the place of an initializer's bytes, and its other fields; None if they are not plain bytes."""
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
    numpy_type = _NUMPY_TYPES.get(onnx_type)
    if size_bytes < _LEAST_BYTES or numpy_type is None:
        return None
    if size_bytes != math.prod(shape) * np.dtype(numpy_type).itemsize:
        return None
    return _Weight(name, onnx_type, tuple(shape), raw[0], size_bytes), b"".join(parts)


def _read_arrays(descriptor: int, weights: dict[str, _Weight]) -> dict[str, np.ndarray]:
    """Read weights into memory of their own; raise OSError or IndexError."""
    arrays = {}
    for weight in weights.values():
        place = _allocate(weight.size_bytes)
        _read_at(descriptor, place, weight.begin)
        arrays[weight.name] = np.frombuffer(place, _NUMPY_TYPES[weight.onnx_type]).reshape(weight.shape)
    return arrays


def _allocate(size_bytes: int) -> memoryview:
    """Return new memory, in huge pages if it is large: these take half of the time to fill, and a tenth to free."""
    if size_bytes < _HUGE_BYTES:
        spare = np.empty(size_bytes + _ALIGNMENT, np.uint8)
        begin = -spare.ctypes.data % _ALIGNMENT
        return spare.data[begin : begin + size_bytes]
    # The kernel aligns mappings of whole huge pages; untouched pages take no memory.
    whole_bytes = -(-size_bytes // _HUGE_BYTES) * _HUGE_BYTES
    memory = mmap.mmap(-1, whole_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    is_almost_full = whole_bytes - size_bytes <= size_bytes // 8
    with suppress(OSError):
        # A kernel without huge pages refuses.
        memory.madvise(mmap.MADV_HUGEPAGE, 0, whole_bytes if is_almost_full else whole_bytes - _HUGE_BYTES)
    return memoryview(memory)[:size_bytes]


def _read_at(descriptor: int, place: memoryview, begin: int) -> None:
    """Fill memory from an offset of a file; a system call reads at most 2 GiB."""
    done = 0
    while done < len(place):
        count = os.preadv(descriptor, [place[done:]], begin + done)
        if not count:
            raise IndexError("the file has become shorter")
        done += count
