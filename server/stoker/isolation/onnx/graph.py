"""The graph of an ONNX model, read from the wire format of its file without the weights."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from stoker.wire.protobuf import BYTES, VARINT, Buffer, Field, FileBytes, fields_of, packed, signed


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant.

    Attributes:
        name: Its name if it is an initializer.
        content: Its elements, flat; None if they are many, not numbers, or stored in another file.
    """

    name: str
    shape: tuple[int, ...]
    content: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference, in an attribute of a node of a function, to an attribute of the function."""

    name: str


@dataclass(frozen=True, slots=True)
class Node:
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


@dataclass(slots=True)
class Graph:
    """The graph of a model, or a subgraph in an attribute.

    Attributes:
        nodes: In topological order.
        inputs: Shape by name: a number, or None for a free size; None in place of the shape for an unknown rank.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, tuple[int | None, ...] | None] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)


_List = tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...]
Attribute = int | float | bytes | _List | Tensor | Graph | Reference | None
"""The value of an attribute; None if it is too long to keep."""


@dataclass(slots=True)
class OnnxFunction:
    """A function defined in the model file."""

    name: str = ""
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    defaults: dict[str, Attribute] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class OnnxModel:
    """A model: its graph, opset versions by domain, and its functions."""

    graph: Graph = field(default_factory=Graph)
    opsets: dict[str, int] = field(default_factory=dict)
    functions: dict[tuple[str, str], OnnxFunction] = field(default_factory=dict)


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
_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 5, 6, 7, 8


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


def _text(data: Buffer, begin: int, end: int) -> str:
    return data[begin:end].decode("utf-8", "surrogateescape")


def _model(data: Buffer) -> OnnxModel:
    model = OnnxModel()
    for number, wire, _, begin, end in fields_of(data, 0, len(data)):
        if wire != BYTES:
            continue
        if number == 7:
            model.graph = _graph(data, begin, end, 0)
        elif number == 8:
            _opset(data, begin, end, model.opsets)
        elif number == 25:
            function = _function(data, begin, end)
            model.functions[function.domain, function.name] = function
    if not model.graph.outputs:
        raise MalformedModel("it has no graph with outputs")
    return model


def _opset(data: Buffer, begin: int, end: int, opsets: dict[str, int]) -> None:
    domain, version = "", 0
    for number, _, value, start, stop in fields_of(data, begin, end):
        if number == 1:
            domain = _text(data, start, stop)
        elif number == 2:
            version = signed(value)
    opsets["" if domain == "ai.onnx" else domain] = version


def _graph(data: Buffer, begin: int, end: int, depth: int) -> Graph:
    if depth > _DEEPEST:
        raise MalformedModel("its graphs are nested too deeply")
    graph = Graph()
    for number, wire, _, start, stop in fields_of(data, begin, end):
        if wire != BYTES:
            continue
        if number == 1:
            graph.nodes.append(_node(data, start, stop, depth))
        elif number == 5:
            tensor = _tensor(data, start, stop)
            graph.constants[tensor.name] = tensor
        elif number == 11:
            name, shape = _value_info(data, start, stop)
            graph.inputs[name] = shape
        elif number == 12:
            graph.outputs.append(_value_info(data, start, stop)[0])
        elif number == 15:
            tensor = _sparse_tensor(data, start, stop)
            graph.constants[tensor.name] = tensor
    return graph


def _node(data: Buffer, begin: int, end: int, depth: int) -> Node:
    inputs, outputs = [], []
    name = operator = domain = ""
    attributes: dict[str, Attribute] = {}
    for number, wire, _, start, stop in fields_of(data, begin, end):
        if wire != BYTES:
            continue
        if number == 1:
            inputs.append(_text(data, start, stop))
        elif number == 2:
            outputs.append(_text(data, start, stop))
        elif number == 3:
            name = _text(data, start, stop)
        elif number == 4:
            operator = _text(data, start, stop)
        elif number == 5:
            key, value = _attribute(data, start, stop, depth)
            attributes[key] = value
        elif number == 7:
            domain = _text(data, start, stop)
    return Node(
        operator, "" if domain == "ai.onnx" else domain, name, tuple(inputs), tuple(outputs), attributes
    )


def _attribute(data: Buffer, begin: int, end: int, depth: int) -> tuple[str, Attribute]:
    name, kind = "", 0
    found: dict[int, Attribute] = {}
    floats: list[float] = []
    integers: list[int] = []
    words: list[bytes] = []
    for number, wire, value, start, stop in fields_of(data, begin, end):
        if number == 1:
            name = _text(data, start, stop)
        elif number in {7, 8, 9} and end - begin > _MOST_LIST_BYTES:
            return name, None
        elif number == 7:
            floats += struct.unpack(f"<{(stop - start) // 4}f", data[start:stop])
        elif number == 8:
            integers += [signed(value)] if wire == VARINT else packed(data, start, stop)
        elif number == 9:
            words.append(data[start:stop])
        elif number == 20:
            kind = value
        elif number == 21:
            return name, Reference(_text(data, start, stop))
        else:
            found.update(_single(data, (number, wire, value, start, stop), depth))
    lists: dict[int, Attribute] = {_FLOATS: tuple(floats), _INTS: tuple(integers), _STRINGS: tuple(words)}
    if not kind:
        kind = next(iter(found), next((key for key, value in lists.items() if value), _INTS))
    return name, {**_DEFAULTS, **lists, **found}.get(kind)


_DEFAULTS: Final[dict[int, Attribute]] = {_FLOAT: 0.0, _INT: 0, _STRING: b""}


def _single(data: Buffer, part: Field, depth: int) -> dict[int, Attribute]:
    """An attribute that is not a list, by its type."""
    number, _, value, start, stop = part
    if number == 2:
        return {_FLOAT: float(struct.unpack("<f", data[start:stop])[0])}
    if number == 3:
        return {_INT: signed(value)}
    if number == 4:
        return {_STRING: data[start:stop]}
    if number == 5:
        return {_TENSOR: _tensor(data, start, stop)}
    if number == 6:
        return {_GRAPH: _graph(data, start, stop, depth + 1)}
    return {}


def _tensor(data: Buffer, begin: int, end: int) -> Tensor:
    name, dtype, external = "", 0, False
    dims: list[int] = []
    numbers: list[float] = []
    raw: bytes | None = None
    for number, wire, value, start, stop in fields_of(data, begin, end):
        if number == 1:
            dims += [signed(value)] if wire == VARINT else packed(data, start, stop)
        elif number == 2:
            dtype = value
        elif number == 8:
            name = _text(data, start, stop)
        elif number in (13, 14):
            external = external or number == 13 or value == 1
        elif number == 9 and stop - start <= 8 * _MOST_ELEMENTS:
            raw = data[start:stop]
        elif number in (4, 5, 7, 10, 11) and len(numbers) <= _MOST_ELEMENTS:
            numbers += _typed(data, number, wire, value, start, stop)
    shape = tuple(dims)
    elements = math.prod(shape)
    if external or dtype not in _DTYPES or elements > _MOST_ELEMENTS:
        return Tensor(name, shape, None)
    if raw is not None:
        numbers = np.frombuffer(raw, _DTYPES[dtype]).tolist()
    elif dtype == 10:
        # float16 elements are stored as the integers of their bits.
        numbers = np.array(numbers, np.uint16).view(np.float16).tolist()
    return Tensor(name, shape, tuple(numbers) if len(numbers) == elements else None)


def _typed(data: Buffer, number: int, wire: int, value: int, start: int, stop: int) -> list[float]:
    """The elements of a typed-data field; one more than the limit stands for any larger number of elements."""
    if wire == VARINT:
        return [signed(value)]
    if stop - start > 10 * _MOST_ELEMENTS:
        return [0.0] * (_MOST_ELEMENTS + 1)
    if number in (4, 10):
        return list(map(float, np.frombuffer(data[start:stop], "<f4" if number == 4 else "<f8")))
    return list(packed(data, start, stop))


def _sparse_tensor(data: Buffer, begin: int, end: int) -> Tensor:
    name = ""
    dims: list[int] = []
    for number, wire, value, start, stop in fields_of(data, begin, end):
        if number == 1:
            name = _tensor(data, start, stop).name
        elif number == 3:
            dims += [signed(value)] if wire == VARINT else packed(data, start, stop)
    return Tensor(name, tuple(dims), None)


def _value_info(data: Buffer, begin: int, end: int) -> tuple[str, tuple[int | None, ...] | None]:
    name = ""
    shape: tuple[int | None, ...] | None = None
    for number, _, _, start, stop in fields_of(data, begin, end):
        if number == 1:
            name = _text(data, start, stop)
        elif number == 2:
            for kind, _, _, inner, inner_end in fields_of(data, start, stop):
                if kind == 1:
                    shape = _tensor_type(data, inner, inner_end)
    return name, shape


def _tensor_type(data: Buffer, begin: int, end: int) -> tuple[int | None, ...] | None:
    for number, _, _, start, stop in fields_of(data, begin, end):
        if number == 2:
            return tuple(
                _size(data, inner, inner_end)
                for dim, _, _, inner, inner_end in fields_of(data, start, stop)
                if dim == 1
            )
    return None


def _size(data: Buffer, begin: int, end: int) -> int | None:
    for number, wire, value, _, _ in fields_of(data, begin, end):
        # Some exporters write 0 or -1 for an unknown size; ONNX Runtime treats these as free.
        if number == 1 and wire == VARINT and signed(value) > 0:
            return signed(value)
    return None


def _function(data: Buffer, begin: int, end: int) -> OnnxFunction:
    function = OnnxFunction()
    for number, wire, _, start, stop in fields_of(data, begin, end):
        if wire != BYTES:
            continue
        if number == 1:
            function.name = _text(data, start, stop)
        elif number == 4:
            function.inputs.append(_text(data, start, stop))
        elif number == 5:
            function.outputs.append(_text(data, start, stop))
        elif number == 7:
            function.nodes.append(_node(data, start, stop, 1))
        elif number == 9:
            _opset(data, start, stop, function.opsets)
        elif number == 10:
            domain = _text(data, start, stop)
            function.domain = "" if domain == "ai.onnx" else domain
        elif number == 11:
            key, value = _attribute(data, start, stop, 1)
            function.defaults[key] = value
    return function
