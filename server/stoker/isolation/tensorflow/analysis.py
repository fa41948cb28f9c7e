"""Determines from the graph of a SavedModel's signature whether its rows affect each other.

The batch axis is followed from the inputs to the outputs, through the functions that the graph calls. An operator
that joins rows is named; if an operator is not known here, the test with companions decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.isolation.tensorflow.computing_rules import COMPUTING
from stoker.isolation.tensorflow.layout_rules import LAYOUTS, MAKING
from stoker.isolation.tensorflow.operator_call import apply_rule
from stoker.isolation.tensorflow.product_rules import PRODUCTS
from stoker.isolation.tensorflow.row_states import Mixed, Plain, Rows, State, Unknown, join, node_of
from stoker.isolation.tensorflow.sizes import SHAPES, compute, constant, shape_of

logger = logging.getLogger(__name__)


_RULES: Final = {**COMPUTING, **LAYOUTS, **PRODUCTS, **MAKING}
_PASSED_ON: Final = frozenset(
    {
        "CheckNumerics",
        "EnsureShape",
        "Identity",
        "IdentityN",
        # An input that the signature does not feed has its default.
        "PlaceholderWithDefault",
        "PreventGradient",
        "Snapshot",
        "StopGradient",
    }
)

# An unknown value may be an index over all rows: a lookup by it may give each row its own value again.
_LOOKING_UP: Final = frozenset({"GatherV2", "GatherNd", "ResourceGather"})
_READING: Final = """
    Assert Case HashTable HashTableV2 If LookupTableFind LookupTableFindV2 LookupTableSizeV2 MutableHashTableV2
    PartitionedCall Placeholder PrintV2 ReadVariableOp ResourceGather ResourceGatherNd StatefulPartitionedCall
    VarHandleOp VarIsInitializedOp VariableShape VariableV2 While
"""
_KEEPS_NOTHING: Final = frozenset(_READING.split())
_MAX_DEPTH: Final = 50
_MAX_ROUNDS: Final = 20


def analyse_function(function: Any) -> GraphAnalysis:
    """Follow the first axis of all inputs through a loaded signature.

    Args:
        function: Its `ConcreteFunction`; the first axis of every input is free.
    """
    graph = function.graph
    captured = len(function.captured_inputs)
    own = len(graph.inputs) - captured
    reader = _GraphReader()
    try:
        outputs = reader.outputs(graph, [*[Rows(0)] * own, *[Plain()] * captured])
    except Exception as error:  # noqa: BLE001  # it uses private parts of TensorFlow
        logger.info("the graph of %s cannot be read: %s", function.name, error)
        return GraphAnalysis("unknown", "its graph cannot be read")
    named = [(state, tensor.name) for state, tensor in zip(outputs, graph.outputs, strict=True)]
    for state in outputs:
        if isinstance(state, Mixed):
            return GraphAnalysis("mixed", f"{state.node} joins the rows of a batch")
    for state in outputs:
        if isinstance(state, Unknown):
            return GraphAnalysis("unknown", f"whether {state.node} keeps rows apart is not known")
    if reader.keeps:
        return GraphAnalysis("unknown", f"{reader.keeps} may keep state from one request for the next")
    other = next((name for state, name in named if state != Rows(0)), None)
    if other is not None:
        return GraphAnalysis(
            "unknown", f"the first axis of its output {other!r} does not follow from that of its inputs"
        )
    return GraphAnalysis("apart")


class _GraphReader:
    """Follows the batch axis through graphs and the functions that they call.

    Attributes:
        keeps: The first operator that may keep state between requests; empty if there is none.
    """

    def __init__(self) -> None:
        self.keeps = ""
        self._depth = 0

    def outputs(self, graph: Any, inputs: Sequence[State]) -> list[State]:
        """Return the states of a graph's outputs for given states of its inputs."""
        if self._depth == _MAX_DEPTH:
            raise RecursionError("functions call each other too deeply")
        self._depth += 1
        states: dict[str, Sequence[State]] = {
            tensor.op.name: [state] for tensor, state in zip(graph.inputs, inputs, strict=True)
        }
        for op in graph.get_operations():
            if op.name not in states:
                states[op.name] = self._of(graph, op, states)
            if op.op_def.is_stateful and op.type not in _KEEPS_NOTHING and not _is_random(op.type):
                self.keeps = self.keeps or node_of(op)
        self._depth -= 1
        return [states[tensor.op.name][tensor.value_index] for tensor in graph.outputs]

    def _of(self, graph: Any, op: Any, known: dict[str, Sequence[State]]) -> Sequence[State]:
        # Loops of TensorFlow 1 have edges back to earlier operators.
        unread = [Unknown(node_of(op))]
        states = [
            known.get(tensor.op.name, unread * (tensor.value_index + 1))[tensor.value_index]
            for tensor in op.inputs
        ]
        match op.type:
            case "PartitionedCall" | "StatefulPartitionedCall":
                return self.outputs(_function(graph, op.get_attr("f"), op.inputs), states)
            case "If" | "StatelessIf":
                found = self._if(graph, op, states)
            case "Case" | "StatelessCase":
                found = self._branches(graph, op, op.get_attr("branches"), states)
            case "While" | "StatelessWhile":
                found = self._while(graph, op, states)
            case _:
                found = _apply(op, states)
        return found if isinstance(found, list) else [found] * len(op.outputs)

    def _if(self, graph: Any, op: Any, states: Sequence[State]) -> State | list[State]:
        branches = [op.get_attr("then_branch"), op.get_attr("else_branch")]
        condition = states[0]
        if isinstance(condition, Plain) and isinstance(condition.value, int):
            return self.outputs(_function(graph, branches[not condition.value], op.inputs[1:]), states[1:])
        return self._branches(graph, op, branches, states)

    def _branches(
        self, graph: Any, op: Any, branches: Sequence[Any], states: Sequence[State]
    ) -> State | list[State]:
        decided = _decided(op, states[0])
        if decided is not None:
            return decided
        first, *others = (
            self.outputs(_function(graph, branch, op.inputs[1:]), states[1:]) for branch in branches
        )
        for other in others:
            first = [join(one, another, node_of(op)) for one, another in zip(first, other, strict=True)]
        return first

    def _while(self, graph: Any, op: Any, states: Sequence[State]) -> State | list[State]:
        """Return the states that are true before and after each iteration, for any number of iterations."""
        body, condition = (_function(graph, op.get_attr(name)) for name in ("body", "cond"))
        carried = list(states)
        for _ in range(_MAX_ROUNDS):
            after = self.outputs(body, carried)
            joined = [_joined(one, other, node_of(op)) for one, other in zip(carried, after, strict=True)]
            if joined == carried:
                (goes_on,) = self.outputs(condition, carried)
                decided = _decided(op, goes_on)
                return carried if decided is None else decided
            carried = joined
        return Unknown(node_of(op))


def _joined(before: State, after: State, node: str) -> State:
    return (
        after
        if isinstance(after, Mixed)
        else before
        if isinstance(before, Mixed)
        else join(before, after, node)
    )


def _decided(op: Any, condition: State) -> State | None:
    """Return the state of outputs that depend on a condition; None if it is independent of the rows and of N."""
    if isinstance(condition, Mixed | Unknown):
        return condition
    return None if isinstance(condition, Plain) and not condition.varies else Unknown(node_of(op))


def _function(graph: Any, named: Any, arguments: Sequence[Any] = ()) -> Any:
    """Return the graph of a function that a graph calls.

    Args:
        arguments: The arguments of the call, to take their shapes; empty for loops, whose shapes may change.
    """
    found = graph._get_function(named.name)  # noqa: SLF001  # there is no public way from a call to its function
    if found is None:
        raise LookupError(f"the function {named.name} is not in the graph")
    if hasattr(found, "graph"):
        return found.graph
    # Functions of TensorFlow 1 models have no shapes.
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

    with graph.as_default():
        return function_def_to_graph(found.definition, [tensor.shape for tensor in arguments] or None)


def _is_random(kind: str) -> bool:
    return "Random" in kind or kind in ("Multinomial", "TruncatedNormal", "ParameterizedTruncatedNormal")


def _apply(op: Any, states: Sequence[State]) -> State | list[State]:
    if op.type == "Const":
        return constant(op)
    if op.type in SHAPES:
        return shape_of(op, states)
    if op.type in _PASSED_ON:
        return list(states)
    rule = _RULES.get(op.type)
    unknown = next((state for state in states if isinstance(state, Unknown)), None)
    mixed = next((state for state in states if isinstance(state, Mixed)), None)
    if unknown is not None and (mixed is None or rule is None or op.type in _LOOKING_UP):
        return unknown
    if mixed is not None:
        return Unknown(node_of(op)) if rule is None else mixed
    plain = [state for state in states if isinstance(state, Plain)]
    if len(plain) < len(states) or op.type in MAKING:
        found = Unknown(node_of(op)) if rule is None else apply_rule(rule, op, states)
        if not (isinstance(found, Unknown) and len(plain) == len(states)):
            return found
    if op.op_def.is_stateful and op.type not in _KEEPS_NOTHING:
        return Unknown(node_of(op))
    return compute(op, plain)
