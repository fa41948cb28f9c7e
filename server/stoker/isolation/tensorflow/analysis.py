"""Determines from the graph of a SavedModel's signature whether its rows affect each other.

The batch axis is followed from the inputs to the outputs, through the functions that the graph calls. An operator
that joins rows is named; if an operator is not known here, the test with companions decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any, Final

from stoker.isolation.batching import GraphAnalysis
from stoker.isolation.tensorflow.row_states import (
    SHAPES,
    Mixed,
    Plain,
    Rows,
    State,
    Unknown,
    compute,
    constant,
    join,
    node_of,
    shape_of,
)
from stoker.isolation.tensorflow.rules import COMPUTING, LAYOUTS, MAKING, is_same_for_all

# TensorFlow's matrix products and lookups: which axis of the result is the batch axis.


Rule = Callable[[Any, Sequence[State]], State | list[State]]
_TRANSPOSED: Final = {"MatMul": ("transpose_a", "transpose_b")}


def _matmul(op: Any, states: Sequence[State]) -> State:
    unknown = Unknown(node_of(op))
    tensors = (*op.outputs, *op.inputs)
    rank, *ranks = [2 if op.type == "MatMul" else tensor.shape.rank for tensor in tensors]
    if rank is None or None in ranks:
        return unknown
    # Axes counted from the last one: 1 and 2 are those of the matrices.
    places = [
        r - state.axis if isinstance(state, Rows) else None for r, state in zip(ranks, states, strict=True)
    ]
    transposed = [op.get_attr(name) for name in _TRANSPOSED.get(op.type, ("adj_x", "adj_y"))]
    contracted = (2 if transposed[0] else 1, 1 if transposed[1] else 2)
    outer = (3 - contracted[0], 3 - contracted[1])
    if any(place == sum_over for place, sum_over in zip(places, contracted, strict=True)):
        return Mixed(node_of(op))
    if tuple(places) == outer:
        # Each row is multiplied by each other row.
        return Mixed(node_of(op))
    rows = [state for state in states if isinstance(state, Rows)]
    exact = all(state.exact for state in rows)
    if len(rows) == 2:
        return Rows(rank - (places[0] or 0), exact) if places[0] == places[1] else unknown
    side = 0 if places[0] is not None else 1
    place, other = places[side], states[1 - side]
    if place is None or not isinstance(other, Plain) or other.varies:
        return unknown
    if place == outer[side]:
        return Rows(rank - (2 - side), exact)
    return Rows(rank - place, exact) if is_same_for_all(op.inputs[1 - side], other, place) else unknown


def _einsum(op: Any, states: Sequence[State]) -> State:
    terms = _einsum_terms(op)
    if terms is None:
        return Unknown(node_of(op))
    *operands, result = terms
    labels = {
        term[state.axis] for term, state in zip(operands, states, strict=True) if isinstance(state, Rows)
    }
    if len(labels) != 1:
        return Unknown(node_of(op))
    (label,) = labels
    for term, state in zip(operands, states, strict=True):
        plain = isinstance(state, Plain) and not state.varies and label not in term
        if not plain and not (isinstance(state, Rows) and term.count(label) == 1):
            return Unknown(node_of(op))
    if label not in result:
        return Mixed(node_of(op))
    return Rows(result.index(label), all(state.exact for state in states if isinstance(state, Rows)))


def _einsum_terms(op: Any) -> list[str] | None:
    """The labels of each operand and of the result, with letters substituted for an ellipsis."""
    equation = op.get_attr("equation").decode()
    operands, arrow, result = equation.partition("->")
    terms = [*operands.split(","), result]
    tensors = [*op.inputs, *op.outputs]
    if not arrow or len(terms) != len(tensors):
        return None
    free = [letter for letter in ascii_letters if letter not in equation]
    filled = []
    for term, tensor in zip(terms, tensors, strict=True):
        rank = tensor.shape.rank
        if rank is None:
            return None
        count = rank - len(term.replace("...", ""))
        if count > len(free) or count < 0 or (count and "..." not in term):
            return None
        # Broadcasting aligns the axes of an ellipsis at the end.
        filled.append(term.replace("...", "".join(free[len(free) - count :])))
    return filled


def _gather(op: Any, states: Sequence[State]) -> State:
    """Rows of indices select from something that is the same for all rows, or each row selects from its own."""
    unknown = Unknown(node_of(op))
    params, indices, axis = states
    batch_dims, rank = op.get_attr("batch_dims"), op.inputs[0].shape.rank
    chosen = axis.value if isinstance(axis, Plain) else None
    if not isinstance(chosen, int) or rank is None:
        return unknown
    chosen %= rank
    if isinstance(params, Plain) and isinstance(indices, Rows):
        ok = not params.varies and batch_dims == 0
        return Rows(chosen + indices.axis, indices.exact) if ok else unknown
    if isinstance(params, Rows) and isinstance(indices, Rows):
        same = params.axis == indices.axis and params.axis < batch_dims <= chosen
        return Rows(params.axis, params.exact and indices.exact) if same else unknown
    indices_rank = op.inputs[1].shape.rank
    if (
        not isinstance(params, Rows)
        or not isinstance(indices, Plain)
        or indices.varies
        or indices_rank is None
    ):
        return unknown
    if batch_dims or params.axis == chosen:
        return unknown
    return params if params.axis < chosen else Rows(params.axis - 1 + indices_rank, params.exact)


def _gather_variable(op: Any, states: Sequence[State]) -> State:
    table, indices = states
    if isinstance(table, Plain) and isinstance(indices, Rows) and op.get_attr("batch_dims") == 0:
        return indices
    return Unknown(node_of(op))


def _gather_nd(op: Any, states: Sequence[State]) -> State:
    params, indices = states
    rank = op.inputs[1].shape.rank
    if isinstance(params, Plain) and not params.varies and isinstance(indices, Rows) and rank is not None:
        return indices if indices.axis < rank - 1 else Unknown(node_of(op))
    return Unknown(node_of(op))


def _lookup(op: Any, states: Sequence[State]) -> State:
    table, keys, default = states
    scalar = op.inputs[2].shape.rank == 0
    if isinstance(table, Plain) and isinstance(keys, Rows) and isinstance(default, Plain) and scalar:
        return keys
    return Unknown(node_of(op))


def _one_hot(op: Any, states: Sequence[State]) -> State:
    indices, *others = states
    if not isinstance(indices, Rows) or any(not isinstance(s, Plain) or s.varies for s in others):
        return Unknown(node_of(op))
    axis = op.get_attr("axis")
    return Rows(indices.axis + (0 <= axis <= indices.axis), indices.exact)


def _parse_example(op: Any, states: Sequence[State]) -> list[State]:
    """A row is an example. Sparse and ragged features have no batch axis; free sizes are the longest example's."""
    unknown = Unknown(node_of(op))
    serialized, *others = states
    sparse = op.get_attr("Nsparse" if op.type == "ParseExample" else "num_sparse")
    shapes = op.get_attr("dense_shapes")
    found: list[State] = [unknown] * len(op.outputs)
    alike = all(isinstance(state, Plain) and not state.varies for state in others)
    if isinstance(serialized, Rows) and serialized.axis == 0 and op.inputs[0].shape.rank == 1 and alike:
        for index, shape in enumerate(shapes):
            free = shape.unknown_rank or any(dim.size < 0 for dim in shape.dim)
            found[3 * sparse + index] = unknown if free else serialized
    return found


PRODUCTS: Final[dict[str, Rule]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("LookupTableFind", "LookupTableFindV2"), _lookup),
    **dict.fromkeys(("ParseExample", "ParseExampleV2"), _parse_example),
    "Einsum": _einsum,
    "GatherV2": _gather,
    "GatherNd": _gather_nd,
    "ResourceGather": _gather_variable,
    "OneHot": _one_hot,
}


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
# An unknown value may be an index over all rows; looking it up may give each row its own value again.
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
        return GraphAnalysis("unknown", f"{reader.keeps} may keep something from one request for the next")
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
        """The states of a graph's outputs for given states of its inputs."""
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
        """The states that hold before and after each iteration, for any number of them."""
        body, condition = (_function(graph, op.get_attr(name)) for name in ("body", "cond"))
        held = list(states)
        for _ in range(_MAX_ROUNDS):
            after = self.outputs(body, held)
            joined = [_joined(one, other, node_of(op)) for one, other in zip(held, after, strict=True)]
            if joined == held:
                (goes_on,) = self.outputs(condition, held)
                decided = _decided(op, goes_on)
                return held if decided is None else decided
            held = joined
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
    """The state of all that depends on a condition; None if the condition is independent of the rows and of N."""
    if isinstance(condition, Mixed | Unknown):
        return condition
    return None if isinstance(condition, Plain) and not condition.varies else Unknown(node_of(op))


def _function(graph: Any, named: Any, arguments: Sequence[Any] = ()) -> Any:
    """The graph of a function that a graph calls.

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
        found = Unknown(node_of(op)) if rule is None else rule(op, states)
        if not (isinstance(found, Unknown) and len(plain) == len(states)):
            return found
    if op.op_def.is_stateful and op.type not in _KEEPS_NOTHING:
        return Unknown(node_of(op))
    return compute(op, plain)
