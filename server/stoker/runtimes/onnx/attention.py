"""Attention written as products and a softmax, as PyTorch's exporters write it, replaced by one operator.

`softmax(scale * Q @ K^T + bias) @ V` becomes `MultiHeadAttention` of ONNX Runtime, which has fused kernels for it.
The operators of a pattern are read from the graph. Sizes and the scale, which exporters compute from shapes, are
observed in runs with different numbers of rows, and with different values of free sizes. A size that has to be
constant must be the same in all runs.

See decision 53.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from stoker.runtimes.onnx.graph_index import MICROSOFT, GraphIndex

_HEADS_BEFORE_TIME: Final = [0, 2, 1, 3]
_RANK: Final = 4
_MOST_STEPS: Final = 6

Observation = Mapping[str, np.ndarray]
"""The tensors of one run of the model, by name."""
Observe = Callable[[Sequence[str]], Sequence[Observation]]
"""Runs a model with several numbers of rows; returns the tensors of these names in each run."""


class _Pattern(Struct):
    """One attention of a graph.

    Attributes:
        query, keys, values: `[rows, heads, time, size]`, but `keys` is `[rows, heads, size, time]`.
        multiplied, divided: Names of scalars by which the query, the keys or the scores are multiplied or divided.
        biases: Names of tensors that are added to the scaled scores.
        output: `[rows, heads, time, size]`.
    """

    query: str
    keys: str
    values: str
    output: str
    multiplied: list[str] = msgspec.field(default_factory=list)
    divided: list[str] = msgspec.field(default_factory=list)
    biases: list[str] = msgspec.field(default_factory=list)

    @property
    def tensors(self) -> list[str]:
        return [
            self.query, self.keys, self.values, self.output, *self.multiplied, *self.divided, *self.biases
        ]  # fmt: skip


def fuse_attention(model: Any, observe: Observe) -> int:
    """Replace each attention of a model that has an exact form; return their number.

    Args:
        model: An `onnx.ModelProto`; it is changed.
        observe: Runs the original model.
    """
    graph = GraphIndex(model)
    patterns = list(_patterns(graph))
    if not patterns:
        return 0
    # Nodes before and behind a pattern may be removed too, so their shapes are observed as well.
    names = {name for pattern in patterns for name in (*pattern.tensors, *_around(graph, pattern))}
    runs = observe([name for name in sorted(names) if graph.constant(name) is None])
    rewriter = _Rewriter(graph, runs)
    replaced = sum(map(rewriter.replace, patterns))
    if replaced:
        graph.replace(rewriter.dropped, rewriter.added)
    return replaced


def _around(graph: GraphIndex, pattern: _Pattern) -> Iterator[str]:
    """Yield the tensors of a few nodes before and behind a pattern."""
    for start in (pattern.query, pattern.keys, pattern.values):
        node = graph.made.get(start)
        for _ in range(_MOST_STEPS):
            if node is None or node.domain or node.op_type not in {"Transpose", "Reshape"}:
                break
            yield node.input[0]
            node = graph.made.get(node.input[0])
    name = pattern.output
    for operator in ("Transpose", "Reshape"):
        node = graph.only_taker(name, operator)
        if node is None:
            return
        name = node.output[0]
        yield name


def _patterns(graph: GraphIndex) -> Iterator[_Pattern]:
    for softmax in graph.model.graph.node:
        if softmax.op_type != "Softmax" or softmax.domain:
            continue
        if graph.attribute(softmax, "axis", graph.softmax_axis) not in (-1, _RANK - 1):
            continue
        product = graph.only_taker(softmax.output[0], "MatMul")
        if product is None or product.input[0] != softmax.output[0]:
            continue
        for pattern in _of_scores(graph, softmax.input[0], product.input[1], product.output[0]):
            yield pattern
            break


def _of_scores(graph: GraphIndex, scores: str, values: str, output: str) -> Iterator[_Pattern]:
    """Yield the possible patterns of the input of a softmax: products of query and keys, scaled, then with biases."""
    product = graph.maker(scores, "MatMul")
    if product is not None:
        query, keys = product.input
        pattern = _Pattern(query, keys, values, output)
        pattern.query = _unscaled(graph, pattern.query, pattern)
        pattern.keys = _unscaled(graph, pattern.keys, pattern)
        yield pattern
        return
    added = graph.maker(scores, "Add")
    if added is not None:
        for place in (0, 1):
            for pattern in _of_scores(graph, added.input[place], values, output):
                pattern.biases.append(added.input[1 - place])
                yield pattern
        return
    inner, scale, kind = _scaled(graph, scores)
    if inner:
        for pattern in _of_scores(graph, inner, values, output):
            # A bias before the scale is no bias of the operator.
            if not pattern.biases:
                getattr(pattern, kind).append(scale)
                yield pattern


def _unscaled(graph: GraphIndex, name: str, pattern: _Pattern) -> str:
    inner, scale, kind = _scaled(graph, name)
    if not inner:
        return name
    getattr(pattern, kind).append(scale)
    return _unscaled(graph, inner, pattern)


def _scaled(graph: GraphIndex, name: str) -> tuple[str, str, str]:
    """Return the tensor that is scaled, the factor, and the list for it; empty if none is scaled."""
    node = graph.maker(name, "Mul")
    if node is not None:
        for place in (0, 1):
            if graph.is_of_shapes(node.input[1 - place]):
                return node.input[place], node.input[1 - place], "multiplied"
    node = graph.maker(name, "Div")
    if node is not None and graph.is_of_shapes(node.input[1]):
        return node.input[0], node.input[1], "divided"
    return "", "", ""


class _Rewriter:
    """Replaces patterns whose observed shapes are those of an attention.

    Attributes:
        added: The new nodes.
        dropped: The nodes that they replace.
    """

    def __init__(self, graph: GraphIndex, runs: Sequence[Observation]) -> None:
        self._graph = graph
        self._runs = runs
        self.added: list[Any] = []
        self.dropped: list[Any] = []
        self._numbers = itertools.count()
        self._made_biases: dict[tuple[str, ...], str] = {}

    def replace(self, pattern: _Pattern) -> bool:
        """Replace a pattern; return whether it has an exact form."""
        found = {self._sizes(pattern, run) for run in range(len(self._runs))}
        sizes, scale = found.pop(), self._scale(pattern)
        if found or sizes is None or scale is None:
            return False
        heads, size, value_size = sizes
        query = self._flat(pattern.query, heads * size)
        keys = self._flat_keys(pattern.keys, heads * size)
        values = self._flat(pattern.values, heads * value_size)
        inputs = [query, keys, values]
        if pattern.biases:
            inputs += ["", "", self._full_bias(pattern, query, keys)]
        self._write_output(pattern, inputs, heads, heads * value_size, scale)
        return True

    def _shape(self, name: str, run: int) -> tuple[int, ...] | None:
        constant = self._graph.constant(name)
        found = self._runs[run].get(name) if constant is None else constant
        return None if found is None else found.shape

    def _sizes(self, pattern: _Pattern, run: int) -> tuple[int, int, int] | None:
        """Return the heads, the size of a key and that of a value; None if shapes do not fit each other."""
        shapes = [
            self._shape(name, run) for name in (pattern.query, pattern.keys, pattern.values, pattern.output)
        ]
        if any(shape is None or len(shape) != _RANK for shape in shapes):
            return None
        query, keys, values, output = (shape for shape in shapes if shape is not None)
        rows, heads, time, size = query
        others, value_size = keys[3], values[3]
        if keys != (rows, heads, size, others) or values != (rows, heads, others, value_size):
            return None
        full = (rows, heads, time, others)
        for name in pattern.biases:
            shape = self._shape(name, run)
            if shape is None or not _broadcasts(shape, full):
                return None
        return (heads, size, value_size) if output == (rows, heads, time, value_size) else None

    def _scale(self, pattern: _Pattern) -> float | None:
        """Return the factor of the products of query and keys; None if it changes with the rows."""
        scales = set()
        for run in self._runs:
            scale = 1.0
            for name in (*pattern.multiplied, *pattern.divided):
                constant = self._graph.constant(name)
                found = run.get(name) if constant is None else constant
                if found is None or found.size != 1:
                    return None
                number = float(found.reshape(-1)[0])
                scale = scale * number if name in pattern.multiplied else scale / number if number else 0.0
            scales.add(scale)
        (scale, *others) = scales
        # 0 would stand for the operator's default.
        return scale if not others and np.isfinite(scale) and scale > 0 else None

    def _has_shape(self, name: str, like: str, last: int) -> bool:
        """Whether a tensor is `[rows, time, last]` in each run, for another that is `[rows, heads, time, size]`."""
        for run in range(len(self._runs)):
            shape, other = self._shape(name, run), self._shape(like, run)
            if other is None or shape != (other[0], other[2], last):
                return False
        return True

    def _flat(self, name: str, width: int) -> str:
        """Return `[rows, heads, time, size]` as `[rows, time, width]`, without its transposition if there is one."""
        before = self._graph.transposed(name, _HEADS_BEFORE_TIME)
        reshape = None if before is None else self._graph.maker(before, "Reshape")
        if reshape is not None and self._has_shape(reshape.input[0], name, width):
            flat: str = reshape.input[0]
            return flat
        return self._reshape(before or self._transpose(name, _HEADS_BEFORE_TIME), [0, 0, width])

    def _flat_keys(self, name: str, width: int) -> str:
        """Return the same for `[rows, heads, size, time]`."""
        straight = self._graph.transposed(name, [0, 2, 3, 1])
        if straight is not None:
            reshape = self._graph.maker(straight, "Reshape")
            flat = "" if reshape is None else reshape.input[0]
            shapes = ((self._shape(flat, run), self._shape(name, run)) for run in range(len(self._runs)))
            if flat and all(keys and shape == (keys[0], keys[3], width) for shape, keys in shapes):
                return flat
            return self._reshape(straight, [0, 0, width])
        keys = self._graph.transposed(name, [0, 1, 3, 2]) or self._transposed_as_matrices(name)
        if keys is not None:
            return self._flat(keys, width)
        return self._reshape(self._transpose(name, [0, 3, 1, 2]), [0, 0, width])

    def _transposed_as_matrices(self, name: str) -> str | None:
        """Return the keys before a reshape to matrices of three axes, a transposition and a reshape to four axes."""
        graph = self._graph
        outer = graph.maker(name, "Reshape")
        matrices = None if outer is None else graph.transposed(outer.input[0], [0, 2, 1])
        inner = None if matrices is None else graph.maker(matrices, "Reshape")
        if inner is None:
            return None
        for run in range(len(self._runs)):
            shape, keys = self._shape(inner.input[0], run), self._shape(name, run)
            middle = self._shape(inner.output[0], run)
            if keys is None or shape != (keys[0], keys[1], keys[3], keys[2]):
                return None
            if middle != (keys[0] * keys[1], keys[3], keys[2]):
                return None
        keys_name: str = inner.input[0]
        return keys_name

    def _full_bias(self, pattern: _Pattern, query: str, keys: str) -> str:
        """Return the sum of the biases with the sizes of both times, which the operator requires."""
        key = tuple(pattern.biases)
        if key in self._made_biases:
            return self._made_biases[key]
        bias = pattern.biases[0]
        for other in pattern.biases[1:]:
            bias = self._add("Add", [bias, other])
        for run in range(len(self._runs)):
            shapes = [self._shape(name, run) or () for name in pattern.biases]
            times = self._times(pattern, run)
            summed = np.broadcast_shapes(*shapes)
            if len(summed) != _RANK or summed[2:] != times:
                bias = self._expand(pattern, bias, query, keys)
                break
        self._made_biases[key] = bias
        return bias

    def _times(self, pattern: _Pattern, run: int) -> tuple[int, int]:
        query, keys = self._shape(pattern.query, run) or (), self._shape(pattern.keys, run) or ()
        return query[2], keys[3]

    def _expand(self, pattern: _Pattern, bias: str, query: str, keys: str) -> str:
        times = {self._times(pattern, run) for run in range(len(self._runs))}
        if len(times) == 1:
            return self._add("Expand", [bias, self._constant([1, 1, *times.pop()])])
        ones = self._constant([1, 1])
        own, others = (
            self._add("Slice", [self._add("Shape", [name]), self._constant([1]), self._constant([2])])
            for name in (query, keys)
        )
        return self._add("Expand", [bias, self._add("Concat", [ones, own, others], axis=0)])

    def _write_output(
        self, pattern: _Pattern, inputs: list[str], heads: int, width: int, scale: float
    ) -> None:
        """Add the operator, without a transposition and a reshape behind the pattern that only order its axes."""
        graph = self._graph
        transpose = graph.only_taker(pattern.output, "Transpose")
        if transpose is not None and graph.attribute(transpose, "perm") == _HEADS_BEFORE_TIME:
            reshape = graph.only_taker(transpose.output[0], "Reshape")
            if reshape is not None and self._has_shape(reshape.output[0], pattern.output, width):
                self.dropped.append(reshape)
                self._attend(inputs, reshape.output[0], heads, scale)
                return
        flat = self._attend(inputs, "", heads, scale)
        apart = self._reshape(flat, [0, 0, heads, width // heads])
        self.dropped.append(graph.made[pattern.output])
        self._add("Transpose", [apart], output=pattern.output, perm=_HEADS_BEFORE_TIME)

    def _attend(self, inputs: list[str], output: str, heads: int, scale: float) -> str:
        return self._add(
            "MultiHeadAttention", inputs, output=output, domain=MICROSOFT, num_heads=heads, scale=scale
        )

    def _transpose(self, name: str, permutation: list[int]) -> str:
        return self._add("Transpose", [name], perm=permutation)

    def _reshape(self, name: str, shape: list[int]) -> str:
        return self._add("Reshape", [name, self._constant(shape)])

    def _constant(self, numbers: list[int]) -> str:
        from onnx import numpy_helper

        name = f"fused_attention_sizes_{next(self._numbers)}"
        tensor = numpy_helper.from_array(np.array(numbers, np.int64), name)
        self._graph.model.graph.initializer.append(tensor)
        return name

    def _add(
        self, operator: str, inputs: list[str], *, output: str = "", domain: str = "", **attributes: Any
    ) -> str:
        from onnx import helper

        name = f"fused_attention_{next(self._numbers)}"
        output = output or name
        self.added.append(helper.make_node(operator, inputs, [output], name, domain=domain, **attributes))
        return output


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether adding a tensor of `shape` keeps the shape `full`."""
    sizes = zip(shape[::-1], full[::-1], strict=False)
    return len(shape) <= len(full) and all(size in (1, whole) for size, whole in sizes)
