"""The graph of an ONNX model: nodes, shapes, and the small constants that serve as parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Attribute", "Function", "Graph", "Model", "Node", "Reference", "Tensor"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant.

    Attributes:
        name: Its name if it is an initializer.
        shape: Its shape.
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
        outputs: Names.
        constants: The initializers, by name.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, tuple[int | None, ...] | None] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)


_List = tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...]
Attribute = int | float | bytes | _List | Tensor | Graph | Reference | None
"""The value of an attribute; None if it is too long to be kept."""


@dataclass(slots=True)
class Function:
    """A function defined in the model file."""

    name: str = ""
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    defaults: dict[str, Attribute] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Model:
    """A model: its graph, opset versions by domain, and its functions."""

    graph: Graph = field(default_factory=Graph)
    opsets: dict[str, int] = field(default_factory=dict)
    functions: dict[tuple[str, str], Function] = field(default_factory=dict)
