"""The nodes of an ONNX graph by the tensors that they make and take, and their replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

MICROSOFT: Final = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
_OPSET_OF_SOFTMAX: Final = 13


class GraphIndex:
    """A graph's nodes by the tensors that they make and take."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.made: dict[str, Any] = {name: node for node in model.graph.node for name in node.output if name}
        self.taken: dict[str, list[Any]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.taken.setdefault(name, []).append(node)
        self.outputs = {value.name for value in model.graph.output}
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        versions = {each.domain: each.version for each in model.opset_import}
        # In older opsets a softmax covered all axes from the second one on.
        self.softmax_axis = -1 if versions.get("", 0) >= _OPSET_OF_SOFTMAX else 1

    def constant(self, name: str) -> np.ndarray | None:
        """Return a constant of the graph; None for other tensors."""
        from onnx import numpy_helper

        tensor = self._initializers.get(name)
        if tensor is None:
            return None
        array: np.ndarray = numpy_helper.to_array(tensor)
        return array

    def maker(self, name: str, operator: str) -> Any:
        """Return the node that makes a tensor if it is of this operator, else None."""
        node = self.made.get(name)
        return node if node is not None and (node.op_type, node.domain) == (operator, "") else None

    def only_taker(self, name: str, operator: str) -> Any:
        """Return the only node that takes a tensor if it is of this operator, else None."""
        takers = self.taken.get(name, ())
        if len(takers) != 1 or name in self.outputs or takers[0].op_type != operator or takers[0].domain:
            return None
        return takers[0]

    def attribute(self, node: Any, name: str, default: Any = None) -> Any:
        """Return the value of an attribute of a node."""
        from onnx import helper

        return next(
            (helper.get_attribute_value(each) for each in node.attribute if each.name == name), default
        )

    def transposed(self, name: str, permutation: Sequence[int]) -> str | None:
        """Return the tensor that a tensor is this transposition of, else None."""
        node = self.maker(name, "Transpose")
        return (
            node.input[0] if node is not None and self.attribute(node, "perm") == list(permutation) else None
        )

    def is_of_shapes(self, name: str) -> bool:
        """Whether a tensor depends on shapes and constants alone, and not on the values of inputs."""
        waiting, visited = [name], set()
        inputs = {value.name for value in self.model.graph.input}
        while waiting:
            each = waiting.pop()
            if each in visited or each in self._initializers:
                continue
            visited.add(each)
            node = self.made.get(each)
            if each in inputs or node is None or _holds_graph(node):
                return False
            if node.op_type not in {"Shape", "Size"}:
                waiting += [name for name in node.input if name]
        return True

    def replace(self, dropped: Sequence[Any], added: Sequence[Any]) -> None:
        """Replace nodes by others, which may be of ONNX Runtime's own operators."""
        from onnx import helper
        from onnxruntime.transformers.onnx_model import OnnxModel

        for node in dropped:
            self.model.graph.node.remove(node)
        self.model.graph.node.extend(added)
        if not any(each.domain == MICROSOFT for each in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        edited = OnnxModel(self.model)
        edited.prune_graph()
        edited.topological_sort()


def _holds_graph(node: Any) -> bool:
    return any(attribute.HasField("g") for attribute in node.attribute)
