"""Sessions for batches of one size each, whose weights lie on the GPU once.

Where a model computes shapes from the size of the batch, ONNX Runtime does so on the CPU, and CUDA cannot capture
what passes to and fro. With the size of the batch fixed these computations are folded into constants, but each size
then needs a session of its own. Their weights are shared: ONNX Runtime uses an initializer in place that is given to
it on the device where it wants it, in memory that it has not allocated itself.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from stoker.isolation.onnx.graph import read_model
from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.onnx.sessions import FixedSize, OnnxSessions
from stoker.wire.protobuf import BYTES, VARINT, Buffer, FileBytes, field, fields_of, packed, signed

logger = logging.getLogger(__name__)

BATCH_AXIS: Final = "stoker_batch_rows"
"""The name of the first axis of an input that the model does not name."""

_LEAST_BYTES: Final = 1 << 16
"""Smaller weights are not shared: they save nothing, and some of them ONNX Runtime wants on the CPU."""
_ALIGNMENT: Final = 256
_LAID_OUT_ANEW: Final = frozenset({"Conv", "ConvTranspose", "Transpose"})
"""ONNX Runtime may change the weights of these, under the same name."""
_GRAPH, _INITIALIZER, _INPUT = 7, 5, 11
_FLOATS, _INTEGERS, _UNSIGNED, _BFLOATS = 2, 0, 1, 4
_CUDA_DEVICE: Final = 2
_ELEMENTS: Final = {
    1: (_FLOATS, 32),
    2: (_UNSIGNED, 8),
    3: (_INTEGERS, 8),
    6: (_INTEGERS, 32),
    7: (_INTEGERS, 64),
    10: (_FLOATS, 16),
    11: (_FLOATS, 64),
    16: (_BFLOATS, 16),
}
"""By the numbers of ONNX the kinds of DLPack and the bits of an element."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant of a model.

    Attributes:
        kind: The kind of its elements, as DLPack numbers them.
        bits: Of an element.
        content: Its bytes.
    """

    name: str
    kind: int
    bits: int
    shape: tuple[int, ...]
    content: bytes


def read_weights(model: Path | bytes, folder: Path) -> Iterator[Weight]:
    """Read the weights that sessions can share: large ones of numbers, which ONNX Runtime leaves as they are.

    Args:
        folder: Where the files lie that hold weights outside of the model.
    """
    graph = read_model(model).graph
    changed = {name for node in graph.nodes if node.operator in _LAID_OUT_ANEW for name in node.inputs}
    if isinstance(model, bytes):
        yield from _weights_of(model, folder, changed)
        return
    with model.open("rb") as file:
        yield from _weights_of(FileBytes(file.fileno()), folder, changed)


def _weights_of(data: Buffer, folder: Path, changed: set[str]) -> Iterator[Weight]:
    for number, wire, _, begin, end in fields_of(data, 0, len(data)):
        if (number, wire) != (_GRAPH, BYTES):
            continue
        for part, kind, _, start, stop in fields_of(data, begin, end):
            if (part, kind) == (_INITIALIZER, BYTES):
                weight = _weight(data, start, stop, folder)
                if weight is not None and weight.name not in changed:
                    yield weight


def _weight(data: Buffer, begin: int, end: int, folder: Path) -> Weight | None:
    """One initializer; None if it is small or not stored as plain bytes."""
    name, dtype, raw = "", 0, (0, 0)
    shape: list[int] = []
    external: dict[str, str] = {}
    for number, wire, value, start, stop in fields_of(data, begin, end):
        if number == 1:
            shape += [signed(value)] if wire == VARINT else packed(data, start, stop)
        elif number == 2:
            dtype = value
        elif number == 8:
            name = _text(data, start, stop)
        elif number == 9:
            raw = start, stop
        elif number == 13:
            pair = {key: _text(data, first, last) for key, _, _, first, last in fields_of(data, start, stop)}
            external[pair[1]] = pair[2]
    if dtype not in _ELEMENTS:
        return None
    kind, bits = _ELEMENTS[dtype]
    size_bytes = math.prod(shape) * bits // 8
    if size_bytes < _LEAST_BYTES:
        return None
    if external:
        content = _external_content(folder / external["location"], int(external.get("offset", 0)), size_bytes)
    else:
        content = data[raw[0] : raw[1]]
    return Weight(name, kind, bits, tuple(shape), content) if len(content) == size_bytes else None


def _external_content(path: Path, offset: int, size_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size_bytes)


def _text(data: Buffer, begin: int, end: int) -> str:
    return data[begin:end].decode("utf-8", "surrogateescape")


def name_batch_axis(content: bytes, names: Sequence[str]) -> bytes:
    """Name the first axis of a model's inputs.

    Args:
        content: The model.
        names: The inputs whose first axis gets the name `BATCH_AXIS`.
    """

    def graph(part: bytes) -> bytes:
        return _with_changed(part, _INPUT, value_info)

    def value_info(part: bytes) -> bytes:
        named = [
            _text(part, start, stop)
            for number, _, _, start, stop in fields_of(part, 0, len(part))
            if number == 1
        ]
        return _with_changed(part, 2, type_of) if named[0] in names else part

    def type_of(part: bytes) -> bytes:
        return _with_changed(part, 1, tensor_type)

    def tensor_type(part: bytes) -> bytes:
        return _with_changed(part, 2, shape)

    def shape(part: bytes) -> bytes:
        return _with_changed(part, 1, lambda _: field(2, BATCH_AXIS.encode()), most=1)

    return _with_changed(content, _GRAPH, graph)


def _with_changed(
    content: bytes, number: int, change: Callable[[bytes], bytes], most: int | None = None
) -> bytes:
    """A message with its fields of a number changed, at most the first `most` of them."""
    parts, last, done = [], 0, 0
    for found, wire, _, start, stop in fields_of(content, 0, len(content)):
        if (found, wire) == (number, BYTES) and (most is None or done < most):
            parts.append(field(number, change(content[start:stop])))
            done += 1
        else:
            parts.append(content[last:stop])
        last = stop
    return b"".join(parts)


class _Tensor(ctypes.Structure):
    """`DLManagedTensor`, as DLPack lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("axes", ctypes.c_int),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# ONNX Runtime wants a function to call when it needs a tensor no more, on whatever thread, also while the interpreter
# ends. Nothing is to be done then, and this function of the C library does nothing.
_DELETER: Final = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class SharedWeights:
    """Weights on the GPU, as ONNX Runtime takes them.

    Attributes:
        values: By name; they must not outlive this object.
        size_bytes: What they take.
    """

    def __init__(self, cuda: CudaRuntime, weights: Sequence[Weight], device_type: int = _CUDA_DEVICE) -> None:
        """Copy the weights to the GPU; raises OutOfMemory."""
        offsets, self.size_bytes = [], 0
        for weight in weights:
            offsets.append(self.size_bytes)
            self.size_bytes += -(-len(weight.content) // _ALIGNMENT) * _ALIGNMENT
        address = cuda.device_alloc(max(1, self.size_bytes))
        weakref.finalize(self, cuda.device_free, address).atexit = False
        self._tensors: list[_Tensor] = []
        self.values: dict[str, onnxruntime.OrtValue] = {}
        stream = cuda.create_stream()
        try:
            for weight, offset in zip(weights, offsets, strict=True):
                content = np.frombuffer(weight.content, np.uint8)
                cuda.copy_to_device(address + offset, content.ctypes.data, len(content), stream)
                self.values[weight.name] = self._value(weight, address + offset, device_type)
            cuda.synchronize(stream)
        finally:
            cuda.destroy_stream(stream)

    def _value(self, weight: Weight, address: int, device_type: int) -> onnxruntime.OrtValue:
        shape = (ctypes.c_int64 * len(weight.shape))(*weight.shape)
        tensor = _Tensor(
            data=address,
            device_type=device_type,
            axes=len(shape),
            kind=weight.kind,
            bits=weight.bits,
            lanes=1,
            shape=shape,
            deleter=_DELETER,
        )
        self._tensors.append(tensor)
        return onnxruntime.OrtValue.from_dlpack(_new_capsule(ctypes.addressof(tensor), b"dltensor", None))


class FixedSessions:
    """A session for each size of batches; see `GraphSessions`. `open` may be called on any thread."""

    shares_memory = False

    def __init__(
        self,
        sessions: OnnxSessions,
        free_axes: Mapping[str, str | None],
        sizes: Sequence[int],
        cuda: CudaRuntime | None,
        fixed_axes: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare the model; sessions are opened when they are asked for.

        Args:
            free_axes: For each input the name of its first axis, None if it has none.
            fixed_axes: Sizes of further axes, by their names.
            sizes: Those that are likely to be asked for, by which the memory limit is divided.
            cuda: Where weights are shared; None to give each session its own.
        """
        unnamed = [name for name, axis in free_axes.items() if axis is None]
        if unnamed:
            model = sessions.model
            content = model if isinstance(model, bytes) else model.read_bytes()
            sessions = replace(sessions, model=name_batch_axis(content, unnamed))
        self._sessions = sessions
        self._axes = {axis or BATCH_AXIS for axis in free_axes.values()}
        self._fixed_axes = fixed_axes or {}
        self._total_rows = sum(sizes)
        self._open: dict[int, onnxruntime.InferenceSession] = {}
        self._opening = threading.Lock()
        self._cuda = cuda
        self._weights = None if cuda is None else self._share(cuda)

    def open(self, rows: int, stream: int) -> onnxruntime.InferenceSession:
        """See `GraphSessions`."""
        with self._opening:
            if rows not in self._open:
                self._open[rows] = self._open_new(rows, stream)
            return self._open[rows]

    def close(self, rows: int) -> None:
        """See `GraphSessions`."""
        self._open.pop(rows, None)

    def nodes_on_cpu(self, rows: int) -> list[str]:
        """The nodes that run on the CPU in batches of this size; see `OnnxSessions.nodes_on_cpu`."""
        return self._sessions.nodes_on_cpu(self._fixed(rows))

    def _fixed(self, rows: int) -> FixedSize:
        weights = {} if self._weights is None else self._weights.values
        axes = {**self._fixed_axes, **dict.fromkeys(self._axes, rows)}
        return FixedSize(axes, weights, rows / max(rows, self._total_rows))

    def _open_new(self, rows: int, stream: int) -> onnxruntime.InferenceSession:
        weights, cuda = self._weights, self._cuda
        if weights is None or cuda is None or self._open:
            return self._sessions.open_with_graphs(stream, self._fixed(rows))
        free_bytes = cuda.free_bytes()
        session = self._sessions.open_with_graphs(stream, self._fixed(rows))
        if free_bytes - cuda.free_bytes() < weights.size_bytes:
            return session
        # ONNX Runtime copies what it does not use in place, and says so in its own log alone.
        logger.info(
            "%s: ONNX Runtime does not use shared weights: each size has its own",
            self._sessions.deployment.name,
        )
        del session
        self._weights = None
        return self._sessions.open_with_graphs(stream, self._fixed(rows))

    def _share(self, cuda: CudaRuntime) -> SharedWeights | None:
        folder = self._sessions.deployment.path.parent
        found = list(read_weights(self._sessions.model, folder))
        if not found:
            return None
        weights = SharedWeights(cuda, found)
        logger.info(
            "%s: %d weights of %.1f MiB are shared by sessions of fixed sizes",
            self._sessions.deployment.name,
            len(weights.values),
            weights.size_bytes / (1 << 20),
        )
        return weights
