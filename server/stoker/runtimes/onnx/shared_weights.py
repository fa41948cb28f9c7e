"""Weights that lie on the GPU once and are shared by several sessions.

ONNX Runtime uses an initializer in place if it gets it on the device of its use, in memory of another owner.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime
from msgspec import Struct

from stoker.isolation.onnx.graph import read_model
from stoker.runtimes.cuda import CudaRuntime
from stoker.wire.protobuf import Buffer, FileBytes
from stoker.wire.protobuf_message import Message

_LEAST_BYTES: Final = 1 << 16
"""Smaller weights are not shared: they save nothing, and ONNX Runtime needs some of them on the CPU."""
_ALIGNMENT: Final = 256
_CHANGES_LAYOUT: Final = frozenset({"Conv", "ConvTranspose", "Transpose"})
"""Operators whose weights ONNX Runtime may change under the same name."""
_GRAPH, _INITIALIZER = 7, 5
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
"""The kind in DLPack and the bits of an element for each element type of ONNX."""


class Weight(Struct, frozen=True):
    """A constant of a model.

    Attributes:
        kind: The kind of its elements, as DLPack numbers them.
        bits: The bits of an element.
        content: Its bytes.
    """

    name: str
    kind: int
    bits: int
    shape: tuple[int, ...]
    content: bytes


def read_weights(model: Path | bytes, folder: Path) -> Iterator[Weight]:
    """Read the weights that sessions can share: large ones of numbers that ONNX Runtime does not change.

    Args:
        folder: The folder of files with weights outside of the model.
    """
    graph = read_model(model).graph
    changed = {name for node in graph.nodes if node.operator in _CHANGES_LAYOUT for name in node.inputs}
    with ExitStack() as opened:
        data: Buffer = (
            model if isinstance(model, bytes) else FileBytes(opened.enter_context(model.open("rb")).fileno())
        )
        for initializer in Message(data).message(_GRAPH).messages(_INITIALIZER):
            weight = _weight(initializer, folder)
            if weight is not None and weight.name not in changed:
                yield weight


def _weight(tensor: Message, folder: Path) -> Weight | None:
    """Read an initializer; return None if it is small or not stored as plain bytes."""
    shape = tuple(tensor.integers(1))
    kind, bits = _ELEMENTS.get(tensor.integer(2), (0, 0))
    size_bytes = math.prod(shape) * bits // 8
    if size_bytes < _LEAST_BYTES:
        return None
    external = {entry.text(1): entry.text(2) for entry in tensor.messages(13)}
    if external:
        content = _external_content(folder / external["location"], int(external.get("offset", 0)), size_bytes)
    else:
        content = tensor.content(9)
    return Weight(tensor.text(8), kind, bits, shape, content) if len(content) == size_bytes else None


def _external_content(path: Path, offset: int, size_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size_bytes)


class _Tensor(ctypes.Structure):
    """`DLManagedTensor` of DLPack."""

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


# ONNX Runtime calls a function when it needs a tensor no more, on any thread, also while the interpreter ends. There
# is nothing to free then, and this function of the C library does nothing.
_DELETER: Final = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class SharedWeights:
    """Weights on the GPU, as values of ONNX Runtime.

    Attributes:
        values: The values by name; they must not outlive this object.
        size_bytes: Their memory.
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
