"""Replaces the ZipMap at the end of a classifier, so that the classifier gives tensors instead of lists of maps.

Converters of scikit-learn end a classifier with a ZipMap, which puts the name of its class beside each score. No
protocol of tensors can express that, and ONNX Runtime returns only tensors that the graph declares as outputs. So
each final ZipMap becomes an Identity with the same output. The names are the same for all rows; callers get them
once, as labels of the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from stoker.isolation.onnx.graph import Node, OnnxModel, read_model
from stoker.wire.protobuf import BYTES, Field, field, fields_of

_MODEL_GRAPH, _MODEL_OPSET = 7, 8
_GRAPH_NODE, _GRAPH_OUTPUT = 1, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR = 1, 2, 3, 4
_FLOAT_TENSOR: Final = b"\x0a\x02\x08\x01"
"""A TypeProto: a tensor (field 1) of elements (field 1) of float32 (1), whose shape ONNX Runtime infers."""
_IDENTITY_OPSET: Final = 13


def replace_maps_by_tensors(model: Path | bytes) -> tuple[bytes, dict[str, tuple[str, ...]]] | None:
    """Replace each final ZipMap by an Identity, so that its output is the tensor of scores.

    Returns:
        The content of the changed file, and for each such output the names of its columns, empty if unknown; None
        if no output is a ZipMap's.

    Raises:
        MalformedModel: The file is not an ONNX model.
        OSError: The file cannot be opened.
    """
    parsed = read_model(model)
    maps = {
        node.outputs[0]: node
        for node in parsed.graph.nodes
        if (node.domain, node.operator) == ("ai.onnx.ml", "ZipMap")
        and node.outputs[0] in parsed.graph.outputs
    }
    if not maps:
        return None
    content = model if isinstance(model, bytes) else model.read_bytes()
    return b"".join(_changed_model(content, parsed, maps)), {
        name: _labels(node) for name, node in maps.items()
    }


def _labels(node: Node) -> tuple[str, ...]:
    words = node.attributes.get("classlabels_strings")
    if isinstance(words, tuple) and words:
        return tuple(word.decode("utf-8", "replace") for word in words if isinstance(word, bytes))
    numbers = node.attributes.get("classlabels_int64s")
    if isinstance(numbers, tuple):
        return tuple(map(str, numbers))
    return ()


def _changed_model(content: bytes, parsed: OnnxModel, maps: Mapping[str, Node]) -> Iterator[bytes]:
    for begin, part in _parts(content, 0, len(content)):
        number, wire, _, start, end = part
        if (number, wire) == (_MODEL_GRAPH, BYTES):
            yield field(_MODEL_GRAPH, b"".join(_changed_graph(content, start, end, maps)))
        else:
            yield content[begin:end]
    if "" not in parsed.opsets:
        yield field(_MODEL_OPSET, bytes([2 << 3, _IDENTITY_OPSET]))


def _changed_graph(content: bytes, begin: int, end: int, maps: Mapping[str, Node]) -> Iterator[bytes]:
    for first, (number, wire, _, start, stop) in _parts(content, begin, end):
        names = _texts(content, start, stop, {_GRAPH_NODE: _NODE_OUTPUT, _GRAPH_OUTPUT: 1}.get(number, 0))
        node = maps.get(names[0]) if wire == BYTES and names else None
        if node is None:
            yield content[first:stop]
        elif number == _GRAPH_NODE:
            yield field(_GRAPH_NODE, _identity(node))
        else:
            yield field(_GRAPH_OUTPUT, field(1, names[0].encode()) + field(2, _FLOAT_TENSOR))


def _parts(content: bytes, begin: int, end: int) -> Iterator[tuple[int, Field]]:
    """Each field of a message, with the place where its key begins."""
    for part in fields_of(content, begin, end):
        yield begin, part
        begin = part[4]


def _texts(content: bytes, begin: int, end: int, number: int) -> Sequence[str]:
    """The texts of one field of a message; none for field 0."""
    if not number:
        return ()
    return [
        content[start:stop].decode("utf-8", "surrogateescape")
        for found, wire, _, start, stop in fields_of(content, begin, end)
        if found == number and wire == BYTES
    ]


def _identity(node: Node) -> bytes:
    texts = (
        (_NODE_INPUT, node.inputs[0]),
        (_NODE_OUTPUT, node.outputs[0]),
        (_NODE_NAME, node.name),
        (_NODE_OPERATOR, "Identity"),
    )
    return b"".join(field(number, text.encode("utf-8", "surrogateescape")) for number, text in texts)
