"""Rules of TensorFlow's matrix products and lookups: the batch axis of the result."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any, Final

from stoker.isolation.tensorflow.computing_rules import is_same_for_all
from stoker.isolation.tensorflow.row_states import Mixed, Plain, Rows, Rule, State, Unknown, node_of

_TRANSPOSED: Final = {"MatMul": ("transpose_a", "transpose_b")}


def _matmul(op: Any, states: Sequence[State]) -> State:
    unknown = Unknown(node_of(op))
    tensors = (*op.outputs, *op.inputs)
    rank, *ranks = [2 if op.type == "MatMul" else tensor.shape.rank for tensor in tensors]
    if rank is None or None in ranks:
        return unknown
    # Axes are counted from the last one: 1 and 2 are those of the matrices.
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
    """Rows of indices select from a table that is the same for all rows, or each row selects from its own part."""
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
