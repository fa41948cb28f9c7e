"""Rules of TensorFlow's matrix products and lookups: the batch axis of the result."""

from __future__ import annotations

from string import ascii_letters
from typing import Final

from stoker.isolation.tensorflow.operator_call import Call, Rule
from stoker.isolation.tensorflow.row_states import Rows, State, Unknown, node_of

_TRANSPOSED: Final = {"MatMul": ("transpose_a", "transpose_b")}


def _matmul(call: Call) -> State:
    op, is_flat = call.op, call.op.type == "MatMul"
    rank, ranks = (2, [2, 2]) if is_flat else (call.output_rank, [call.rank(0), call.rank(1)])
    # Axes are counted from the last one: 1 and 2 are those of the matrices.
    places = [
        rank_of_input - state.axis if isinstance(state, Rows) else None
        for rank_of_input, state in zip(ranks, call.states, strict=True)
    ]
    transposed = [op.get_attr(name) for name in _TRANSPOSED.get(op.type, ("adj_x", "adj_y"))]
    contracted = (2 if transposed[0] else 1, 1 if transposed[1] else 2)
    outer = (3 - contracted[0], 3 - contracted[1])
    if any(place == sum_over for place, sum_over in zip(places, contracted, strict=True)):
        call.mixed()
    if tuple(places) == outer:
        # Each row is multiplied by each other row.
        call.mixed()
    if None not in places:
        if places[0] != places[1]:
            call.undecided()
        return Rows(rank - (places[0] or 0), call.are_exact)
    side = 0 if places[0] is not None else 1
    place = places[side]
    call.fixed(1 - side)
    if place is None:
        call.undecided()
    if place == outer[side]:
        return Rows(rank - (2 - side), call.are_exact)
    call.check_same_for_all(1 - side, place)
    return Rows(rank - place, call.are_exact)


def _einsum(call: Call) -> State:
    *operands, result = _einsum_terms(call)
    labels = {
        term[state.axis] for term, state in zip(operands, call.states, strict=True) if isinstance(state, Rows)
    }
    if len(labels) != 1:
        call.undecided()
    (label,) = labels
    for index, term in enumerate(operands):
        if not isinstance(call.states[index], Rows):
            call.fixed(index)
        if term.count(label) != isinstance(call.states[index], Rows):
            call.undecided()
    return Rows(result.index(label), call.are_exact) if label in result else call.mixed()


def _einsum_terms(call: Call) -> list[str]:
    """The labels of each operand and of the result, with letters substituted for an ellipsis."""
    equation = call.op.get_attr("equation").decode()
    operands, arrow, result = equation.partition("->")
    terms = [*operands.split(","), result]
    ranks = [*(call.rank(index) for index in range(len(call.states))), call.output_rank]
    if not arrow or len(terms) != len(ranks):
        call.undecided()
    free = [letter for letter in ascii_letters if letter not in equation]
    filled = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term.replace("...", ""))
        if count > len(free) or count < 0 or (count and "..." not in term):
            call.undecided()
        # Broadcasting aligns the axes of an ellipsis at the end.
        filled.append(term.replace("...", "".join(free[len(free) - count :])))
    return filled


def _gather(call: Call) -> State:
    """Rows of indices select from a table that is the same for all rows, or each row selects from its own part."""
    params, indices, _ = call.states
    batch_dims, chosen = call.op.get_attr("batch_dims"), call.integer(2) % call.rank()
    if isinstance(params, Rows) and isinstance(indices, Rows):
        same = params.axis == indices.axis and params.axis < batch_dims <= chosen
        return Rows(params.axis, call.are_exact) if same else call.undecided()
    if isinstance(indices, Rows):
        call.fixed(0)
        return call.undecided() if batch_dims else Rows(chosen + indices.axis, indices.exact)
    params = call.rows()
    call.fixed(1)
    if batch_dims or params.axis == chosen:
        call.undecided()
    return params if params.axis < chosen else Rows(params.axis - 1 + call.rank(1), params.exact)


def _gather_variable(call: Call) -> State:
    call.plain(0)
    return call.undecided() if call.op.get_attr("batch_dims") else call.rows(1)


def _gather_nd(call: Call) -> State:
    call.fixed(0)
    indices = call.rows(1)
    return indices if indices.axis < call.rank(1) - 1 else call.undecided()


def _lookup(call: Call) -> State:
    call.plain(0)
    call.plain(2)
    return call.undecided() if call.rank(2) else call.rows(1)


def _one_hot(call: Call) -> State:
    call.check_others_fixed()
    indices, axis = call.rows(), call.op.get_attr("axis")
    return Rows(indices.axis + (0 <= axis <= indices.axis), indices.exact)


def _parse_example(call: Call) -> list[State]:
    """A row is an example. Sparse and ragged features have no batch axis; free sizes are the longest example's."""
    call.check_others_fixed()
    examples, op = call.first_rows(), call.op
    sparse = op.get_attr("Nsparse" if op.type == "ParseExample" else "num_sparse")
    found: list[State] = [Unknown(node_of(op))] * len(op.outputs)
    if call.rank() == 1:
        for index, shape in enumerate(op.get_attr("dense_shapes")):
            if not shape.unknown_rank and all(dim.size >= 0 for dim in shape.dim):
                found[3 * sparse + index] = examples
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
