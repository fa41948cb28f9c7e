"""The graph of an ONNX model, read from the wire format of its file without the weights."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from stoker.wire.protobuf import Buffer, FileBytes
from stoker.wire.protobuf_message import Message


class Tensor(Struct, frozen=True):
    """A constant.

    Attributes:
        name: Its name if it is an initializer.
        content: Its elements, flat; None if they are many, not numbers, or stored in another file.
    """

    name: str
    shape: tuple[int, ...]
    content: tuple[float, ...] | None


class Reference(Struct, frozen=True):
    """A reference, in an attribute of a node of a function, to an attribute of the function."""

    name: str


class Node(Struct, frozen=True):
    """One node: an operator with its inputs, outputs and attributes."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    def __str__(self) -> str:
        name = self.name or next(filter(None, self.outputs), "")
        return f"{self.operator} {name!r}"


class Graph(Struct):
    """The graph of a model, or a subgraph in an attribute.

    Attributes:
        nodes: In topological order.
        inputs: Shape by name: a number, or None for a free size; None in place of the shape for an unknown rank.
    """

    nodes: list[Node]
    inputs: dict[str, tuple[int | None, ...] | None]
    outputs: list[str]
    constants: dict[str, Tensor]


_List = tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...]
Attribute = int | float | bytes | _List | Tensor | Graph | Reference | None
"""The value of an attribute; None if it is too long to keep."""


class OnnxFunction(Struct):
    """A function defined in the model file."""

    name: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    defaults: dict[str, Attribute]
    opsets: dict[str, int]


class OnnxModel(Struct):
    """A model: its graph, opset versions by domain, and its functions."""

    graph: Graph
    opsets: dict[str, int]
    functions: dict[tuple[str, str], OnnxFunction]


_DEEPEST: Final = 24
"""The deepest nesting of graphs; protobuf's own limit is 100 messages, and a nested graph takes three of them."""
_WHOLE_BYTES: Final = 16 << 20
"""Of longer files only the needed parts are read."""
_MOST_ELEMENTS: Final = 512
"""Constants with more elements are weights or tables; their content is not kept."""
_MOST_LIST_BYTES: Final = 1 << 14
"""Longer list attributes, such as the trees of an ensemble or a vocabulary, are not kept."""

_DTYPES: Final = {
    1: "<f4",
    2: "u1",
    3: "i1",
    4: "<u2",
    5: "<i2",
    6: "<i4",
    7: "<i8",
    9: "?",
    10: "<f2",
    11: "<f8",
    12: "<u4",
    13: "<u8",
}
_MOST_FIELDS: Final = 1 << 14
"""Further fields of an attribute are those of a list that is too long. There may be millions."""
_LISTS: Final = (7, 8, 9)
"""The fields with the floats, integers and texts of an attribute."""
_FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA, _INTEGER_DATA = 4, 9, 10, (5, 7, 11)
"""The fields with the elements of a tensor."""
_FLOAT16: Final = 10
_EXTERNAL: Final = 1


class MalformedModel(Exception):
    """The bytes are no ONNX model, or not one that this module can read."""


def read_model(model: Path | bytes) -> OnnxModel:
    """Read a model's graph.

    Args:
        model: The file, or its content. Weights of a large file are not read.

    Raises:
        MalformedModel: The bytes are no ONNX model.
        OSError: The file cannot be opened.
    """
    if isinstance(model, bytes):
        return read_content(model)
    with model.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if not size_bytes:
            raise MalformedModel(f"{model} is empty")
        return read_content(file.read() if size_bytes <= _WHOLE_BYTES else FileBytes(file.fileno()))


def read_content(data: Buffer) -> OnnxModel:
    """Read a model's graph from its content; raises `MalformedModel`."""
    try:
        return _model(data)
    except (IndexError, ValueError, struct.error, RecursionError, OverflowError) as error:
        raise MalformedModel(f"not an ONNX model: {error}") from error


def _model(data: Buffer) -> OnnxModel:
    message = Message(data)
    functions = map(_function, message.messages(25))
    model = OnnxModel(
        _graph(message.message(7), 0),
        _opsets(message.messages(8)),
        {(function.domain, function.name): function for function in functions},
    )
    if not model.graph.outputs:
        raise MalformedModel("it has no graph with outputs")
    return model


def _domain(text: str) -> str:
    return "" if text == "ai.onnx" else text


def _opsets(messages: Iterable[Message]) -> dict[str, int]:
    return {_domain(one.text(1)): one.integer(2) for one in messages}


def _graph(message: Message, depth: int) -> Graph:
    if depth > _DEEPEST:
        raise MalformedModel("its graphs are nested too deeply")
    tensors = (*map(_tensor, message.messages(5)), *map(_sparse_tensor, message.messages(15)))
    return Graph(
        [_node(one, depth) for one in message.messages(1)],
        {one.text(1): _shape(one) for one in message.messages(11)},
        [one.text(1) for one in message.messages(12)],
        {tensor.name: tensor for tensor in tensors},
    )


def _node(message: Message, depth: int) -> Node:
    return Node(
        operator=message.text(4),
        domain=_domain(message.text(7)),
        name=message.text(3),
        inputs=tuple(message.texts(1)),
        outputs=tuple(message.texts(2)),
        attributes=_attributes(message, 5, depth),
    )


def _attributes(message: Message, number: int, depth: int) -> dict[str, Attribute]:
    return {one.text(1): _attribute(one, depth) for one in message.messages(number, _MOST_FIELDS)}


def _attribute(message: Message, depth: int) -> Attribute:
    if message.has(21):
        return Reference(message.text(21))
    if not message.is_whole or message.size_bytes(*_LISTS) > _MOST_LIST_BYTES:
        return None
    # The field of a value is one behind the number of its type, which the first versions of ONNX left out.
    fields = range(2, 10)
    match message.integer(20) + 1 if message.has(20) else next(filter(message.has, fields), 8):
        case 2:
            return float(struct.unpack("<f", message.joined(2) or bytes(4))[0])
        case 3:
            return message.integer(3)
        case 4:
            return message.content(4)
        case 5 if message.has(5):
            return _tensor(message.message(5))
        case 6 if message.has(6):
            return _graph(message.message(6), depth + 1)
        case 7:
            return tuple(np.frombuffer(message.joined(7), "<f4").tolist())
        case 8:
            return tuple(message.integers(8))
        case 9:
            return tuple(message.contents(9))
    return None


def _tensor(message: Message) -> Tensor:
    name, shape, dtype = message.text(8), tuple(message.integers(1)), message.integer(2)
    elements = math.prod(shape)
    is_external = message.has(13) or message.integer(14) == _EXTERNAL
    if is_external or dtype not in _DTYPES or elements > _MOST_ELEMENTS:
        return Tensor(name, shape, None)
    content = _elements(message, dtype)
    return Tensor(name, shape, content if len(content) == elements else None)


def _elements(message: Message, dtype: int) -> tuple[float, ...]:
    """Return the elements of a tensor; none if they are surely too many."""
    if message.size_bytes(_FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA, *_INTEGER_DATA) > 10 * _MOST_ELEMENTS:
        return ()
    if message.has(_RAW_DATA):
        return tuple(np.frombuffer(message.joined(_RAW_DATA), _DTYPES[dtype]).tolist())
    integers = [number for field in _INTEGER_DATA for number in message.integers(field)]
    if dtype == _FLOAT16:
        # They are stored as the integers of their bits.
        return tuple(np.array(integers, np.uint16).view(np.float16).tolist())
    floats = np.frombuffer(message.joined(_FLOAT_DATA), "<f4").tolist()
    doubles = np.frombuffer(message.joined(_DOUBLE_DATA), "<f8").tolist()
    return (*floats, *doubles, *integers)


def _sparse_tensor(message: Message) -> Tensor:
    return Tensor(message.message(1).text(8), tuple(message.integers(3)), None)


def _shape(value_info: Message) -> tuple[int | None, ...] | None:
    tensor_type = value_info.message(2).message(1)
    return tuple(map(_size, tensor_type.message(2).messages(1))) if tensor_type.has(2) else None


def _size(dimension: Message) -> int | None:
    # Some exporters write 0 or -1 for an unknown size; ONNX Runtime treats these as free.
    size = dimension.integer(1)
    return size if size > 0 else None


def _function(message: Message) -> OnnxFunction:
    return OnnxFunction(
        name=message.text(1),
        domain=_domain(message.text(10)),
        inputs=message.texts(4),
        outputs=message.texts(5),
        nodes=[_node(one, 1) for one in message.messages(7)],
        defaults=_attributes(message, 11, 1),
        opsets=_opsets(message.messages(9)),
    )
