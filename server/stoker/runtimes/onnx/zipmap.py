"""Classifiers whose scores are maps: the maps are replaced by the tensor of the scores.

Converters of scikit-learn end a classifier with a ZipMap, which puts the names of the classes beside the scores of
each row. Protocols of tensors have no maps, and ONNX Runtime returns an intermediate tensor only if the graph
declares it as an output. So each final ZipMap becomes an Identity with the same output. The names are the same for
all rows: they become the labels of the output's columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.onnx.graph import MalformedModel, Node, OnnxModel, read_model
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.protobuf import field
from stoker.wire.protobuf_message import Message, change_fields

_MODEL_GRAPH, _MODEL_OPSET = 7, 8
_GRAPH_NODE, _GRAPH_OUTPUT = 1, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR = 1, 2, 3, 4
_FLOAT_TENSOR: Final = b"\x0a\x02\x08\x01"
"""A TypeProto: a tensor (field 1) of elements (field 1) of float32 (1), whose shape ONNX Runtime infers."""
_IDENTITY_OPSET: Final = 13


def replace_maps_by_tensors(model: Path | bytes) -> tuple[bytes, dict[str, tuple[str, ...]]] | None:
    """Replace sequences of maps by the tensors of scores.

    Returns:
        The content of the changed file, and the names of the columns by output, empty if they are unknown; None if no
        output comes from a ZipMap.

    Raises:
        MalformedModel: The file is no ONNX model.
        OSError: The file cannot be opened.
    """
    read = read_model(model)
    maps = {
        node.outputs[0]: node
        for node in read.graph.nodes
        if (node.domain, node.operator) == ("ai.onnx.ml", "ZipMap") and node.outputs[0] in read.graph.outputs
    }
    if not maps:
        return None
    content = model if isinstance(model, bytes) else model.read_bytes()
    return _change_model(content, read, maps), {name: _labels(node) for name, node in maps.items()}


def _labels(node: Node) -> tuple[str, ...]:
    words = node.attributes.get("classlabels_strings")
    if isinstance(words, tuple) and words:
        return tuple(word.decode("utf-8", "replace") for word in words if isinstance(word, bytes))
    numbers = node.attributes.get("classlabels_int64s")
    if isinstance(numbers, tuple):
        return tuple(map(str, numbers))
    return ()


def _change_model(content: bytes, read: OnnxModel, maps: Mapping[str, Node]) -> bytes:
    changed = change_fields(content, _MODEL_GRAPH, lambda graph: _change_graph(graph, maps))
    return changed if "" in read.opsets else changed + field(_MODEL_OPSET, bytes([2 << 3, _IDENTITY_OPSET]))


def _change_graph(graph: bytes, maps: Mapping[str, Node]) -> bytes:
    def change_node(content: bytes) -> bytes:
        found = [maps[name] for name in Message(content).texts(_NODE_OUTPUT) if name in maps]
        return _identity(found[0]) if found else content

    def change_output(content: bytes) -> bytes:
        name = Message(content).text(1)
        return field(1, name.encode()) + field(2, _FLOAT_TENSOR) if name in maps else content

    return change_fields(change_fields(graph, _GRAPH_NODE, change_node), _GRAPH_OUTPUT, change_output)


def _identity(node: Node) -> bytes:
    words = (
        (_NODE_INPUT, node.inputs[0]),
        (_NODE_OUTPUT, node.outputs[0]),
        (_NODE_NAME, node.name),
        (_NODE_OPERATOR, "Identity"),
    )
    return b"".join(field(number, word.encode("utf-8", "surrogateescape")) for number, word in words)


def without_maps(model: Path | bytes) -> tuple[Path | bytes, dict[str, tuple[str, ...]]]:
    """Return the model with a tensor for each final map, and the names of the columns by output."""
    try:
        return replace_maps_by_tensors(model) or (model, {})
    except (MalformedModel, OSError):
        return model, {}


def label_columns(info: TensorInfo, labels: tuple[str, ...], deployment: Deployment) -> TensorInfo:
    """Return an output with the names of its columns, and their number if the file gives no sizes."""
    shape = info.shape or ((-1, len(labels)) if labels else ())
    as_objects = bool(labels) and deployment.zipmap == "objects"
    return dataclasses.replace(info, shape=shape, labels=labels, as_objects=as_objects)


def check_objects(deployment: Deployment, tensors: ModelTensors | None) -> None:
    """Raise LoadFailed unless there are outputs to write as objects, each with a column for each class."""
    found = [info for info in (tensors.outputs if tensors is not None else ()) if info.as_objects]
    if not found:
        raise LoadFailed(
            f"{deployment.path} has no output that is a ZipMap with named classes: leave zipmap out for "
            f"{deployment.name}"
        )
    for info in found:
        if not info.shape or info.shape[-1] not in (-1, len(info.labels)):
            raise LoadFailed(
                f"{deployment.path} gives {info}, which cannot be written as objects with its "
                f"{len(info.labels)} classes: leave zipmap out for {deployment.name}"
            )
