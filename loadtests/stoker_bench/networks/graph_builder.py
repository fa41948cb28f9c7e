"""Builds a network as an ONNX graph, node by node, with the `onnx` package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

OPSET: Final = 17
IR_VERSION: Final = 8
"""Old enough for every ONNX Runtime that Stoker takes."""


class GraphBuilder:
    """Nodes and initialisers in order; each node has the name of its output."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.weights = weights
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output, and return that."""
        from onnx import helper

        self._nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def weight(self, name: str) -> str:
        """Add a weight as an initialiser."""
        return self.initializer(name, self.weights[name])

    def initializer(self, name: str, values: NDArray[Any]) -> str:
        """Add an initialiser, and return its name."""
        from onnx import numpy_helper

        self._initializers.append(numpy_helper.from_array(values, name))
        return name

    def model(self, name: str, inputs: list[Any], outputs: list[Any]) -> Any:
        """Return the network as an `onnx.ModelProto`, with these `onnx.ValueInfoProto`."""
        from onnx import helper

        return helper.make_model(
            helper.make_graph(self._nodes, name, inputs, outputs, self._initializers),
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name="stoker_bench",
        )


def float_values(name: str, *shape: str | int) -> Any:
    """Return an input or output of float32 as an `onnx.ValueInfoProto`."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
