"""GELU, as PyTorch's newer exporter writes it, replaced by one operator; ONNX Runtime fuses older forms itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

_DOMAIN: Final = "com.microsoft"
_TOLERANCE: Final = 1e-3


def fuse_gelu(model: Any) -> int:
    """Replace each `x * (0.5 * (erf(x / sqrt(2)) + 1))` of an `onnx.ModelProto`; return their number."""
    from onnx import helper
    from onnxruntime.transformers.onnx_model import OnnxModel

    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    constant = _constants(model)
    found = []
    for node in graph.node:
        source = _gelu_input(node, made, constant) if node.op_type == "Mul" else None
        if source is not None:
            found.append((node, source))
    for node, source in found:
        gelu = helper.make_node("Gelu", [source], list(node.output), f"{node.name}_gelu", domain=_DOMAIN)
        place = list(graph.node).index(node)
        graph.node.remove(node)
        graph.node.insert(place, gelu)
    if found:
        if not any(each.domain == _DOMAIN for each in model.opset_import):
            model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
        OnnxModel(model).prune_graph()
    return len(found)


def _constants(model: Any) -> Callable[[str], float | None]:
    from onnx import numpy_helper

    numbers = {
        tensor.name: float(numpy_helper.to_array(tensor).reshape(-1)[0])
        for tensor in model.graph.initializer
        if np.prod(tensor.dims, dtype=np.int64) == 1 and not tensor.external_data
    }
    return numbers.get


def _gelu_input(node: Any, made: dict[str, Any], constant: Callable[[str], float | None]) -> str | None:
    """Return the input of the GELU that ends in this product; None for other products."""

    def beside(name: str, operator: str, number: float) -> str | None:
        """Return the other operand of a tensor that an operator makes with a constant."""
        maker = made.get(name)
        if maker is None or maker.op_type != operator or len(maker.input) != 2:
            return None
        for place in (1, 0) if operator != "Div" else (1,):
            if math.isclose(constant(maker.input[place]) or 0, number, rel_tol=_TOLERANCE):
                inner: str = maker.input[1 - place]
                return inner
        return None

    for place in (0, 1):
        source = node.input[1 - place]
        half = beside(node.input[place], "Mul", 0.5)
        sum_of = half and beside(half, "Add", 1.0)
        erf = made.get(sum_of) if sum_of else None
        if erf is not None and erf.op_type == "Erf":
            inner = erf.input[0]
            if source in (beside(inner, "Div", math.sqrt(2)), beside(inner, "Mul", math.sqrt(0.5))):
                return str(source)
    return None
