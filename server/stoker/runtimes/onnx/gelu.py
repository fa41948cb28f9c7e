"""GELU, as PyTorch's newer exporter writes it, replaced by one operator; ONNX Runtime fuses older forms itself."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from stoker.runtimes.onnx.graph_index import MICROSOFT, GraphIndex

_TOLERANCE: Final = 1e-3


def fuse_gelu(model: Any) -> int:
    """Replace each `x * (0.5 * (erf(x / sqrt(2)) + 1))` of an `onnx.ModelProto`; return their number."""
    from onnx import helper

    graph = GraphIndex(model)
    found = [(node, _gelu_input(node, graph)) for node in model.graph.node if node.op_type == "Mul"]
    sources = [(node, source) for node, source in found if source is not None]
    added = [
        helper.make_node("Gelu", [source], list(node.output), f"{node.name}_gelu", domain=MICROSOFT)
        for node, source in sources
    ]
    if added:
        graph.replace([node for node, _ in sources], added)
    return len(added)


def _gelu_input(node: Any, graph: GraphIndex) -> str | None:
    """Return the input of the GELU that ends in this product; None for other products."""

    def beside(name: str, operator: str, number: float) -> str | None:
        """Return the other operand of a tensor that an operator makes with a constant."""
        maker = graph.maker(name, operator)
        if maker is None or len(maker.input) != 2:
            return None
        for place in (1, 0) if operator != "Div" else (1,):
            constant = graph.constant(maker.input[place])
            if constant is not None and constant.size == 1 and np.allclose(constant, number, _TOLERANCE):
                inner: str = maker.input[1 - place]
                return inner
        return None

    for place in (0, 1):
        source = node.input[1 - place]
        half = beside(node.input[place], "Mul", 0.5)
        sum_of = half and beside(half, "Add", 1.0)
        erf = graph.maker(sum_of, "Erf") if sum_of else None
        if erf is not None:
            inner = erf.input[0]
            if source in (beside(inner, "Div", math.sqrt(2)), beside(inner, "Mul", math.sqrt(0.5))):
                return str(source)
    return None
