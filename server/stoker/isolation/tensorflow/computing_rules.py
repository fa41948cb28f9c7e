"""Rules of TensorFlow's elementwise operators, layers, and operators along axes."""

from __future__ import annotations

from typing import Final

from stoker.isolation.tensorflow.operator_call import Call, Rule
from stoker.isolation.tensorflow.row_states import Mixed, Plain, Rows, State, Unknown, node_of

_ELEMENTWISE: Final = """
    Abs Acos Acosh Add AddN AddV2 ApproximateEqual AsString Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr
    BitwiseXor Bucketize Cast Ceil ClipByValue Cos Cosh DecodeBase64 Digamma Div DivNoNan Elu EncodeBase64 Equal
    Erf Erfc Exp
    Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars Floor FloorDiv FloorMod Greater GreaterEqual Inv Invert
    IsFinite IsInf IsNan LeakyRelu LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum
    Minimum Mod Mul MulNoNan Neg NextAfter NotEqual OnesLike Pow RealDiv Reciprocal RegexFullMatch RegexReplace Relu
    Relu6 RightShift Rint Round Rsqrt Select SelectV2 Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square
    SquaredDifference StaticRegexFullMatch StaticRegexReplace StringJoin StringLength StringLower StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub Substr Tan Tanh
    TruncateDiv TruncateMod UnicodeTranscode Xdivy Xlog1py Xlogy ZerosLike
"""
_ALONG_ROWS: Final = """
    AvgPool AvgPool3D Conv2D Conv3D DepthToSpace DepthwiseConv2dNative Dilation2D LRN MaxPool MaxPool3D MaxPoolV2
    ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor SpaceToDepth
"""


def _elementwise(call: Call) -> State:
    """Each row is combined only with the row at the same position, and with values that are the same for all rows.

    Axes are counted from the last one, as broadcasting does.
    """
    if len(call.states) == 1:
        return call.rows()
    ranks = [call.rank(index) for index in range(len(call.states))]
    places = {
        rank - state.axis for rank, state in zip(ranks, call.states, strict=True) if isinstance(state, Rows)
    }
    if len(places) != 1 or (call.op.type == "Select" and len(set(ranks)) > 1):
        call.undecided()
    (place,) = places
    for index, state in enumerate(call.states):
        if not isinstance(state, Rows):
            call.check_same_for_all(index, place)
    return Rows(call.output_rank - place, call.are_exact)


def _along_rows(call: Call) -> State:
    """Operators on images and the like whose first axis is the batch axis and that keep its rows apart."""
    call.check_others_fixed()
    return call.first_rows()


def _transposed_convolution(call: Call) -> State:
    call.plain(0)
    call.fixed(1)
    return call.first_rows(2)


def _bias(call: Call) -> State:
    value, rank = call.rows(), call.rank()
    call.fixed(1)
    channels = 1 if call.op.get_attr("data_format") == b"NCHW" and rank > 2 else rank - 1
    return call.undecided() if value.axis == channels else value


def _normalization(call: Call) -> State | list[State]:
    call.check_others_fixed()
    first = call.first_rows()
    if call.op.get_attr("is_training"):
        call.mixed()
    return [first, *(Plain() for _ in call.op.outputs[1:])]


def _axes(call: Call) -> set[int]:
    """The axes that the second input names, as non-negative numbers."""
    numbers, rank = call.numbers(1), call.rank()
    if not all(isinstance(number, int) for number in numbers):
        call.undecided()
    return {number % rank for number in numbers}


def _reduction(call: Call) -> State:
    first, axes = call.rows(), _axes(call)
    if first.axis in axes:
        call.mixed()
    if call.op.type not in ("ArgMax", "ArgMin") and call.op.get_attr("keep_dims"):
        return first
    return Rows(first.axis - sum(axis < first.axis for axis in axes), first.exact)


def _scan(call: Call) -> State:
    first = call.rows()
    return call.mixed() if first.axis in _axes(call) else first


def _last_axis(call: Call) -> State:
    call.check_others_fixed()
    first = call.rows()
    return call.mixed() if first.axis == call.rank() - 1 else first


def _whole(call: Call) -> State:
    """An operator that works on a whole tensor, or reorders its first axis."""
    call.first_rows()
    call.mixed()


def _quantization(call: Call) -> State | list[State]:
    """With a given range it is elementwise; else the range is that of the whole batch."""
    call.check_others_fixed()
    first = call.rows()
    if call.op.get_attr("axis") != -1:
        call.undecided()
    if call.op.type == "QuantizeV2":
        return [first, Plain(), Plain()]
    return first if call.op.get_attr("range_given") else call.mixed()


def _distinct(call: Call) -> State | list[State]:
    """The indices of distinct values number all rows; values looked up by these may be each row's own again."""
    call.first_rows()
    node = node_of(call.op)
    return [Unknown(node), *(Mixed(node) for _ in call.op.outputs[1:])]


COMPUTING: Final[dict[str, Rule]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(_ALONG_ROWS.split(), _along_rows),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _transposed_convolution),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _normalization),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm"), _reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduction),
    **dict.fromkeys(("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"), _scan),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2"), _last_axis),
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts"), _distinct),
    "BiasAdd": _bias,
    **dict.fromkeys(("L2Loss", "RandomShuffle"), _whole),
    **dict.fromkeys(
        ("QuantizeV2", "QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"),
        _quantization,
    ),
}
