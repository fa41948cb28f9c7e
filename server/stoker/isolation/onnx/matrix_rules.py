"""Rules of matrix products."""

from __future__ import annotations

from stoker.isolation.onnx.operator_rules import ALIGNED, CONSTANT_BY_PLACE, MICROSOFT, Call, rule
from stoker.isolation.onnx.row_states import Value, same
from stoker.isolation.onnx.sizes import Dim


@rule("MatMul", "MatMulInteger")
@rule("MatMulIntegerToFloat", "MatMulInteger16", domain=MICROSOFT)
def _matmul(call: Call) -> Value:
    call.only(0, 1)
    return _matrix_product(call, call.value(0), call.value(1))


@rule("QLinearMatMul")
def _quantised_matmul(call: Call) -> Value:
    call.only(0, 3)
    return _matrix_product(call, call.value(0), call.value(3))


@rule("MatMulNBits", domain=MICROSOFT)
def _matmul_of_bits(call: Call) -> Value:
    call.only(0)
    shape = call.shape(0)
    axis = call.batch_axis(0)
    if axis == len(shape) - 1:
        call.mixed("adds up numbers of several rows")
    return call.give([*shape[:-1], call.integer("N", 0)], axis)


@rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(call: Call) -> Value:
    if call.integer("transBatchA", 0) or call.integer("transBatchB", 0):
        call.undecided("turns its batches round")
    call.only(0, 1)
    return _product_of_turned(call, 0, 1)


def _product_of_turned(call: Call, first: int, second: int) -> Value:
    """The product of two inputs, which attributes may transpose."""
    sides = (
        _turned(call, call.value(index)) if call.integer(name, 0) else call.value(index)
        for index, name in ((first, "transA"), (second, "transB"))
    )
    return _matrix_product(call, *sides)


def _turned(call: Call, value: Value) -> Value:
    """The state after transposing the last two axes."""
    if value.shape is None:
        call.undecided("takes a tensor of unknown rank")
    rank = len(value.shape)
    if rank < 2:
        return value
    shape = (*value.shape[:-2], value.shape[-1], value.shape[-2])
    moved = {rank - 1: rank - 2, rank - 2: rank - 1}
    return call.give(shape, moved.get(value.axis, value.axis) if value.is_rows else None)


def _axis(value: Value) -> int | None:
    return value.axis if value.is_rows else None


def _matrix_product(call: Call, first: Value, second: Value) -> Value:
    """The product of two stacks of matrices, as in numpy's `matmul`."""
    if first.shape is None or second.shape is None or not first.shape or not second.shape:
        if first.is_rows or second.is_rows:
            call.undecided("takes a tensor of unknown rank")
        return same()
    a, b = first.shape, second.shape
    rank = max(len(a), len(b), 2)
    if _summed(first, len(a) - 1) or _summed(second, max(len(b) - 2, 0)):
        call.mixed("adds up numbers of several rows")
    left = list(a) if len(a) > 1 else [1, *a]
    right = list(b) if len(b) > 1 else [*b, 1]
    # With the contracted axes set to 1, the other axes broadcast as in elementwise operators.
    result = call.broadcast(
        [call.give([*left[:-1], 1], _axis(first)), call.give([*right[:-2], 1, right[-1]], _axis(second))]
    )
    shape = list(result.shape or ())
    axis = _axis(result)
    if len(b) == 1:
        shape.pop(-1)
    if len(a) == 1:
        shape.pop(-1 if len(b) == 1 else -2)
        if axis is not None and axis == rank - 1:
            axis -= 1
    return call.give(shape, axis)


def _summed(value: Value, axis: int) -> bool:
    return value.is_rows and value.axis == axis


@rule("Gemm")
@rule("FusedGemm", domain=MICROSOFT)
def _gemm(call: Call) -> Value:
    product = _product_of_turned(call, 0, 1)
    if not call.has(2):
        return product
    if call.opset < 7 and not call.node.domain:
        call.undecided(ALIGNED)
    return call.broadcast([product, call.value(2)])


@rule("QGemm", domain=MICROSOFT)
def _quantised_gemm(call: Call) -> Value:
    call.only(0)
    return _product_of_turned(call, 0, 3)


@rule("Einsum")
def _einsum(call: Call) -> Value:
    equation = call.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) != len(call.inputs):
        call.undecided(f"computes {equation!r}, which is not followed")
    labels = {term[call.value(index).axis] for index, term in enumerate(terms) if call.value(index).is_rows}
    sizes: dict[str, Dim] = {}
    for index, term in enumerate(terms):
        shape = call.value(index).shape or (None,) * len(term)
        for place, (label, size) in enumerate(zip(term, shape, strict=False)):
            if sizes.get(label) in {None, 1}:
                sizes[label] = size
            of_rows = call.value(index).is_rows and call.value(index).axis == place
            if label in labels and not of_rows and size != 1 and len(labels) == 1:
                call.undecided(CONSTANT_BY_PLACE)
    if len(labels) > 1:
        call.mixed("puts every row beside every other one")
    if not labels:
        return same([sizes.get(label) for label in right])
    (label,) = labels
    if label not in right:
        call.mixed("adds up numbers of several rows")
    # An axis of size 1 is broadcast to the rows.
    sizes[label] = next(
        call.shape(index)[call.value(index).axis] for index in range(len(terms)) if call.value(index).is_rows
    )
    return call.give([sizes.get(name) for name in right], right.index(label))
