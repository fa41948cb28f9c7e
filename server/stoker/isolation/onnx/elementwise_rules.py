"""Rules of elementwise operators, of operators along axes, and of operators that make tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stoker.isolation.onnx.graph import Tensor
from stoker.isolation.onnx.operator_rules import (
    ALIGNED,
    BY_PLACE,
    CONSTANT_BY_PLACE,
    MICROSOFT,
    ML,
    SCALE_OF_ALL,
    Call,
    rule,
)
from stoker.isolation.onnx.row_states import Value, same
from stoker.isolation.onnx.sizes import Size

_ONE_INPUT: Final = """
    Abs Acos Acosh Asin Asinh Atan Atanh Bernoulli BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not RandomNormalLike RandomUniformLike
    Reciprocal RegexFullMatch Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan
    Tanh ThresholdedRelu
"""
_BROADCASTING: Final = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max
    Mean Min Mod Mul Or PRelu Pow StringConcat Sub Sum Where Xor
"""


@rule(*_ONE_INPUT.split(), "CastLike", "Clip")
@rule("Gelu", "QuickGelu", "QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
@rule("Binarizer", "LabelEncoder", "CategoryMapper", "ZipMap", domain=ML)
def per_row(call: Call) -> Value:
    """Elementwise with one input: rows stay apart."""
    call.only(0)
    value = call.value(0)
    return value if value.is_rows else same(value.shape)


@rule("Dropout")
def _dropout(call: Call) -> list[Value]:
    if call.value(0).is_rows and call.has(2) and call.value(2).content != (0,):
        call.undecided("draws at random")
    return [per_row(call)] * 2


@rule(*_BROADCASTING.split())
@rule("BiasGelu", "FastGelu", domain=MICROSOFT)
def _broadcasting(call: Call) -> Value:
    if call.opset < 7 and not call.node.domain:
        call.undecided(ALIGNED)
    return call.broadcast([value for value in call.inputs if value is not None])


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call) -> list[Value]:
    if call.value(0).is_rows:
        call.mixed(SCALE_OF_ALL)
    return [same(call.value(0).shape), same(()), same(())]


@rule("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic_quantize_within(call: Call) -> Value:
    if any(value is not None and value.is_rows for value in call.inputs):
        call.mixed(SCALE_OF_ALL)
    return same()


@rule("QuantizeLinear", "DequantizeLinear")
@rule("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def _quantize(call: Call) -> Value:
    value, scale = call.value(0), call.value(1)
    if not value.is_rows:
        call.only(0)
        return same(value.shape)
    axis = call.axis(1) if scale.shape else None
    if scale.is_rows and (scale.rank != 1 or axis != value.axis or call.integer("block_size", 0)):
        call.undecided("takes its scale from the rows")
    by_axis = not scale.is_rows and scale.shape not in {(), (1,)}
    if by_axis and (scale.shape is None or axis == value.axis or call.integer("block_size", 0)):
        call.undecided(CONSTANT_BY_PLACE)
    if call.has(2) and call.value(2).is_rows and not scale.is_rows:
        call.undecided("takes its zero point from the rows")
    return value


@rule("Softmax", "LogSoftmax", "Hardmax")
@rule("QLinearSoftmax", domain=MICROSOFT)
def _softmax(call: Call) -> Value:
    is_quantised = bool(call.node.domain)
    # Before opset 13 all axes from this one on are flattened into one.
    is_flat = (call.integer("opset", 13) if is_quantised else call.opset) < 13
    axis = call.axis(1 if is_flat and not is_quantised else -1)
    call.check_not_over(*(range(axis, len(call.shape(0))) if is_flat else [axis]))
    return per_row(call)


@rule("LpNormalization")
def _lp_normalization(call: Call) -> Value:
    call.check_not_over(call.axis(-1))
    return per_row(call)


@rule("CumSum", "CumProd")
def _cumulative(call: Call) -> Value:
    value = call.value(0)
    if value.is_rows and call.from_front(call.numbers(1)[0], len(call.shape(0))) == value.axis:
        call.mixed("adds up over the rows of the batch")
    return per_row(call)


@rule("TopK")
def _top(call: Call) -> list[Value]:
    axis = call.axis(-1)
    if call.batch_axis(0) == axis:
        call.mixed("picks among the rows of the batch")
    call.only(0)
    shape = list(call.shape(0))
    content = call.value(1).content if call.has(1) else (call.integer("k", 1),)
    shape[axis] = int(content[0]) if content and isinstance(content[0], int | float) else call.free()
    return [call.give(shape, call.batch_axis(0))] * 2


_REDUCTIONS: Final = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare
"""


@rule(*_REDUCTIONS.split())
def _reduction(call: Call) -> Value:
    call.only(0)
    axes = call.list_of("axes")
    if not axes and call.integer("noop_with_empty_axes", 0):
        return per_row(call)
    if not axes and not call.integer("keepdims", 1) and not call.value(0).is_rows:
        return same(())
    rank = len(call.shape(0))
    return _reduced(call, [call.from_front(axis, rank) for axis in axes or range(rank)])


@rule("ArgMax", "ArgMin")
def _place_of_largest(call: Call) -> Value:
    return _reduced(call, [call.axis(0)])


def _reduced(call: Call, axes: Sequence[int]) -> Value:
    shape = call.shape(0)
    call.check_not_over(*axes)
    if call.integer("keepdims", 1):
        sizes = [1 if axis in axes else size for axis, size in enumerate(shape)]
        return call.give(sizes, call.batch_axis(0))
    return call.take_axes([axis for axis in range(len(shape)) if axis not in axes])


@rule("NonZero", "Unique")
@rule("Unique", domain=MICROSOFT)
def _found_in_all(call: Call) -> list[Value]:
    if call.value(0).is_rows:
        call.mixed("goes over the rows of the batch")
    flat = call.node.operator == "Unique" and "axis" not in call.attributes
    shape = [call.free()] if flat else None
    return [same(shape)] * len(call.node.outputs)


@rule("OneHot", parameters=(1,))
def _one_hot_by_axis(call: Call) -> Value:
    call.only(0)
    if call.value(1).kind == "sized":
        call.undecided("takes a size from the number of rows")
    shape = list(call.shape(0))
    content = call.value(1).content
    depth = content[0] if content else None
    place = call.from_front(call.integer("axis", -1), len(shape) + 1)
    shape.insert(place, int(depth) if isinstance(depth, int | float) else call.free())
    batch = call.batch_axis(0)
    return call.give(shape, None if batch is None else batch + (place <= batch))


@rule("Trilu")
@rule("Trilu", domain=MICROSOFT)
def _triangle(call: Call) -> Value:
    call.only(0)
    value = call.value(0)
    if value.is_rows and value.axis >= len(call.shape(0)) - 2:
        call.undecided(BY_PLACE)
    return per_row(call)


@rule("Multinomial")
def _multinomial(call: Call) -> Value:
    if call.batch_axis(0) == 1:
        call.mixed("picks among the rows of the batch")
    return call.give([call.shape(0)[0], call.integer("sample_size", 1)], call.batch_axis(0))


@rule("RandomNormal", "RandomUniform")
def _random(call: Call) -> Value:
    return same(call.integers("shape"))


@rule("Range")
def _range(call: Call) -> Value:
    call.only()
    return same([call.free()])


@rule("Constant")
def _constant(call: Call) -> Value:
    value = next(iter(call.attributes.values()), None)
    return same(value.shape) if isinstance(value, Tensor) else same()


@rule("ConstantOfShape", parameters=(0,))
def _constant_of_shape(call: Call) -> Value:
    call.only()
    sizes = call.sizes(0)
    batch = [axis for axis, size in enumerate(sizes) if isinstance(size, Size) and size.rows]
    if len(batch) > 1 or None in sizes:
        call.undecided("makes a tensor whose sizes are not known")
    return call.give(sizes, batch[0] if batch else None)
