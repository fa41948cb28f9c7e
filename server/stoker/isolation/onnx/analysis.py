"""Follows the batch axis through an ONNX graph, operator by operator.

This is an abstract interpretation: instead of numbers, each tensor has a state that says how it depends on the rows
of the batch. A model is `apart` only if every operator on every path from an input to an output is known to keep rows
apart; else it is `mixed` or `unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from stoker.isolation.graph_analysis import GraphAnalysis

# Importing these modules registers their rules.
from stoker.isolation.onnx import (  # noqa: F401
    elementwise_rules,
    layer_rules,
    matrix_rules,
    shape_rules,
    table_rules,
)
from stoker.isolation.onnx.contents import computed
from stoker.isolation.onnx.graph import (
    Attribute,
    Graph,
    MalformedModel,
    Node,
    OnnxFunction,
    OnnxModel,
    Reference,
    read_model,
)
from stoker.isolation.onnx.operator_rules import RULES, Call
from stoker.isolation.onnx.row_states import (
    Mixed,
    Undecided,
    Value,
    joined,
    lost,
    of_rows,
    same,
    sized,
    worst,
)
from stoker.isolation.onnx.sizes import ROWS, Dim, Size

_MOST_STEPS: Final = 200_000
"""Nodes to visit at most; those of a loop's body count once for each iteration."""
_DEEPEST: Final = 32
_MOST_TURNS: Final = 6
"""Iterations of a loop until the states of its variables have to be stable."""


def analyse_onnx(model: Path | bytes) -> GraphAnalysis:
    """Determine whether the rows of a model affect each other, if the first axis of each input is the batch axis.

    Args:
        model: The file, or its content; ONNX Runtime has already loaded it.
    """
    try:
        return _analyse_outputs(follow_batch_axis(model))
    except Undecided as error:
        return GraphAnalysis("unknown", str(error))
    except (MalformedModel, OSError) as error:
        return GraphAnalysis("unknown", f"its graph cannot be read: {error}")


def follow_batch_axis(model: Path | bytes) -> dict[str, Value]:
    """Return the state of each output of a model if the first axis of each input is the batch axis.

    Raises:
        Undecided: The first axis of an input is not a free size.
        MalformedModel: The file is no ONNX model.
        OSError: The file cannot be opened.
    """
    return _Reader(read_model(model)).outputs()


class _Scope(Struct):
    """The states of the tensors of a graph and of the enclosing graphs."""

    opsets: Mapping[str, int]
    attributes: Mapping[str, Attribute]
    outer: _Scope | None = None
    values: dict[str, Value | None] = msgspec.field(default_factory=dict)

    def find(self, name: str) -> Value | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return lost("unknown", f"the tensor {name!r} is not made by any node before it is used")

    def inner(self) -> _Scope:
        return _Scope(self.opsets, self.attributes, self)


class _Reader:
    def __init__(self, model: OnnxModel) -> None:
        self._model = model
        self._steps = 0
        self._depth = 0

    def outputs(self) -> dict[str, Value]:
        graph = self._model.graph
        scope = _Scope(self._model.opsets, {})
        for name, sizes in graph.inputs.items():
            if name in graph.constants:
                continue
            if not sizes or sizes[0] is not None:
                raise Undecided(f"the first axis of its input {name!r} is no free size")
            # Free sizes of two inputs may differ, even if the file gives them the same name.
            free = (size or Size(1, 0, (f"{name}:{axis}",)) for axis, size in enumerate(sizes[1:], 1))
            scope.values[name] = of_rows([ROWS, *free], 0)
        return dict(zip(graph.outputs, self._run(graph, scope), strict=True))

    def _run(self, graph: Graph, scope: _Scope) -> list[Value]:
        """Follow a graph whose inputs are in its scope; return the states of its outputs."""
        for name, tensor in graph.constants.items():
            scope.values[name] = same(tensor.shape, tensor.content)
        self._follow(graph.nodes, scope)
        return [
            scope.find(name) or lost("unknown", f"the output {name!r} is left out") for name in graph.outputs
        ]

    def _follow(self, nodes: Sequence[Node], scope: _Scope) -> None:
        for node in nodes:
            self._steps += 1
            outputs = self._outputs(node, scope)
            for place, name in enumerate(node.outputs):
                if name:
                    scope.values[name] = outputs[place] if place < len(outputs) else _not_followed(node)

    def _outputs(self, node: Node, scope: _Scope) -> Sequence[Value]:
        inputs = [scope.find(name) if name else None for name in node.inputs]
        bad = worst(inputs)
        if bad is not None:
            return [bad] * len(node.outputs)
        if self._steps > _MOST_STEPS or self._depth > _DEEPEST:
            return [lost("unknown", "its graph is too large to be read")] * len(node.outputs)
        attributes = {
            name: scope.attributes.get(value.name) if isinstance(value, Reference) else value
            for name, value in node.attributes.items()
            if not isinstance(value, Reference) or value.name in scope.attributes
        }
        call = Call(node, inputs, scope.opsets.get(node.domain, 1), attributes)
        self._depth += 1
        try:
            found = self._apply(call, scope)
        except Mixed as error:
            found = lost("mixed", str(error))
        except Undecided as error:
            found = lost("unknown", str(error))
        except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            found = lost("unknown", f"{node} is not what its operator's description says")
        finally:
            self._depth -= 1
        return [found] * len(node.outputs) if isinstance(found, Value) else found

    def _apply(self, call: Call, scope: _Scope) -> Value | Sequence[Value]:
        node = call.node
        function = self._model.functions.get((node.domain, node.operator))
        if function is not None:
            return self._call(function, call)
        control = {"If": self._if, "Loop": self._loop, "Scan": self._scan}.get(node.operator)
        if control is not None and not node.domain:
            return control(call, scope)
        value = computed(call)
        if value is not None:
            return value
        if any(value is not None and value.is_rows for value in call.inputs):
            return _apply_rule(call)
        return _without_rows(call)

    def _call(self, function: OnnxFunction, call: Call) -> Sequence[Value]:
        attributes = {**function.defaults, **call.attributes}
        scope = _Scope(function.opsets or self._model.opsets, attributes)
        for place, name in enumerate(function.inputs):
            scope.values[name] = call.inputs[place] if place < len(call.inputs) else None
        self._follow(function.nodes, scope)
        return [scope.find(name) or _not_followed(call.node) for name in function.outputs]

    def _if(self, call: Call, scope: _Scope) -> Sequence[Value]:
        condition = call.value(0)
        if condition.is_rows:
            call.mixed("chooses by the contents of the rows of the batch")
        branches = [_graph(call, name) for name in ("then_branch", "else_branch")]
        if condition.content and isinstance(condition.content[0], int | float):
            return self._run(branches[0 if condition.content[0] else 1], scope.inner())
        if condition.kind == "sized":
            call.undecided("chooses by the number of rows")
        either = [self._run(branch, scope.inner()) for branch in branches]
        return [_joined(call, *values) for values in zip(*either, strict=True)]

    def _loop(self, call: Call, scope: _Scope) -> Sequence[Value]:
        body = _graph(call, "body")
        for index in (0, 1):
            if call.has(index):
                self._check_count(call, call.value(index))
        trips = call.value(0).content if call.has(0) else None
        start = [call.value(index) for index in range(2, len(call.inputs))]
        turn, going = list(body.inputs)[:2]
        states = list(body.inputs)[2:]
        known = {turn: same(()), going: same(())}
        surely = bool(trips and isinstance(trips[0], int | float) and trips[0] > 0 and not call.has(1))
        carried, parts = self._turns(call, scope, body, known, states, start, surely)
        return [*carried, *(_stacked(call, part, 0) for part in parts)]

    def _turns(
        self,
        call: Call,
        scope: _Scope,
        body: Graph,
        known: Mapping[str, Value],
        states: Sequence[str],
        start: Sequence[Value],
        surely: bool,
        condition: bool = True,
    ) -> tuple[list[Value], list[Value]]:
        """Follow a loop's body until states are stable; return these and the states of the per-iteration outputs."""
        state = list(start)
        ends: list[list[Value]] = [] if surely else [list(start)]
        parts: list[Value] = []
        for turn in range(_MOST_TURNS):
            inner = scope.inner()
            inner.values.update(known)
            inner.values.update(zip(states, state, strict=True))
            outputs = self._run(body, inner)
            if condition:
                self._check_count(call, outputs.pop(0))
            new, given = outputs[: len(states)], outputs[len(states) :]
            parts = given if not parts else [_joined(call, *pair) for pair in zip(parts, given, strict=True)]
            ends.append(new)
            if turn:
                new = [_widened(*pair) for pair in zip(state, new, strict=True)]
            if new == state:
                break
            state = new
        else:
            call.undecided("goes on changing its variables from turn to turn")
        carried = ends[0]
        for end in ends[1:]:
            carried = [_joined(call, *pair) for pair in zip(carried, end, strict=True)]
        return carried, parts

    def _check_count(self, call: Call, value: Value) -> None:
        """Raise unless the number of a loop's iterations is independent of the rows."""
        if value.kind == "lost":
            raise (Mixed if value.finding == "mixed" else Undecided)(value.reason)
        if value.is_rows:
            call.mixed("runs as often as the contents of the batch say")
        if value.kind == "sized":
            call.undecided("runs as often as there are rows")

    def _scan(self, call: Call, scope: _Scope) -> Sequence[Value]:
        if call.opset < 9:
            call.undecided("is of a version that is not followed")
        body = _graph(call, "body")
        count = call.integer("num_scan_inputs", 1)
        carried = len(call.inputs) - count
        axes = call.integers("scan_input_axes") or (0,) * count
        names = list(body.inputs)
        known = {
            names[carried + place]: _element(call, carried + place, axes[place], states=carried)
            for place in range(count)
        }
        start = [call.value(index) for index in range(carried)]
        state, parts = self._turns(
            call, scope, body, known, names[:carried], start, surely=True, condition=False
        )
        outward = call.integers("scan_output_axes") or (0,) * len(parts)
        return [*state, *(_stacked(call, part, axis) for part, axis in zip(parts, outward, strict=True))]


def _apply_rule(call: Call) -> Value | Sequence[Value]:
    rule = RULES.get((call.node.domain, call.node.operator))
    if rule is None:
        call.undecided("is not known here")
    for index, value in enumerate(call.inputs):
        if value is not None and value.kind == "sized" and index not in rule.parameters:
            call.undecided("takes numbers that depend on how many rows there are")
    return rule.function(call)


def _without_rows(call: Call) -> Value | Sequence[Value]:
    """The outputs of a node whose inputs do not depend on the rows' contents, though perhaps on N."""
    by_size = {
        index for index, value in enumerate(call.inputs) if value is not None and value.kind == "sized"
    }
    rule = RULES.get((call.node.domain, call.node.operator))
    if rule is None or not by_size <= rule.parameters:
        return sized() if by_size else same()
    try:
        found = rule.function(call)
    except (Undecided, Mixed, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return sized() if by_size else same()
    if not by_size:
        return found
    values = [found] if isinstance(found, Value) else found
    return [value if value.is_rows else sized() for value in values] * (
        len(call.node.outputs) if isinstance(found, Value) else 1
    )


def _not_followed(node: Node) -> Value:
    return lost("unknown", f"{node} has an output that is not followed")


def _graph(call: Call, name: str) -> Graph:
    graph = call.attributes.get(name)
    return graph if isinstance(graph, Graph) else call.undecided(f"has no graph as {name}")


def _joined(call: Call, first: Value, second: Value) -> Value:
    value = joined(first, second)
    return value if value is not None else call.undecided("has outputs that differ by branch or turn")


def _widened(before: Value, after: Value) -> Value:
    """The state for a loop variable whose sizes or small contents change in every iteration."""
    value = joined(before, after)
    return after if value is None else value


def _stacked(call: Call, value: Value, axis: int) -> Value:
    """Per-iteration outputs, stacked along a new axis."""
    if value.kind == "lost" or value.shape is None:
        return value if value.kind in {"lost", "sized"} else same()
    axis = call.from_front(axis, len(value.shape) + 1)
    shape: list[Dim] = list(value.shape)
    shape.insert(axis, call.free())
    if value.is_rows:
        return call.give(shape, value.axis + (axis <= value.axis))
    return same(shape) if value.kind == "same" else sized(shape)


def _element(call: Call, index: int, axis: int, states: int) -> Value:
    """The state of one iteration's slice of a Scan input."""
    value = call.value(index)
    if value.shape is None:
        return value
    axis = call.from_front(axis, len(value.shape))
    shape = [size for place, size in enumerate(value.shape) if place != axis]
    if not value.is_rows:
        return same(shape) if value.kind == "same" else sized(shape)
    if axis == value.axis:
        if states:
            call.mixed("goes over the rows of the batch")
        call.undecided("goes over the rows of the batch one by one")
    return call.give(shape, value.axis - (axis < value.axis))


def _analyse_outputs(outputs: Mapping[str, Value]) -> GraphAnalysis:
    bad = worst(outputs.values())
    for name, value in outputs.items():
        if bad is not None and bad.finding == "mixed":
            break
        if value.kind in {"lost", "same"}:
            continue
        if value.is_rows and value.axis:
            bad = lost(
                "mixed", f"its output {name!r} has the rows along axis {value.axis}, not along the first"
            )
        elif bad is None and (value.kind == "sized" or value.shape is None or value.shape[0] != ROWS):
            bad = lost("unknown", f"its output {name!r} has not one row for each row of the batch")
    return GraphAnalysis("apart") if bad is None else GraphAnalysis(bad.finding, bad.reason)
