"""Rules of TensorFlow's elementwise operators, layers, and operators along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stoker.isolation.tensorflow.row_states import (
    Mixed,
    Plain,
    Rows,
    Rule,
    State,
    Unknown,
    node_of,
)

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


def _elementwise(op: Any, states: Sequence[State]) -> State:
    """Each row is combined only with the row at the same position, and with values that are the same for all rows.

    Axes are counted from the last one, as broadcasting does.
    """
    unknown = Unknown(node_of(op))
    if len(states) == 1 and isinstance(states[0], Rows):
        return states[0]
    rank = op.outputs[0].shape.rank
    ranks = [tensor.shape.rank for tensor in op.inputs]
    if rank is None or None in ranks:
        return unknown
    places = {r - state.axis for r, state in zip(ranks, states, strict=True) if isinstance(state, Rows)}
    if len(places) != 1 or (op.type == "Select" and len(set(ranks)) > 1):
        return unknown
    (place,) = places
    for tensor, state in zip(op.inputs, states, strict=True):
        if isinstance(state, Rows):
            continue
        if not is_same_for_all(tensor, state, place):
            return unknown
    return Rows(rank - place, all(state.exact for state in states if isinstance(state, Rows)))


def is_same_for_all(tensor: Any, state: State, place: int) -> bool:
    """Whether a tensor without rows is the same for each row; `place` is the batch axis counted from the last."""
    if not isinstance(state, Plain) or state.varies or tensor.shape.rank is None:
        return False
    # Any size other than 1 would give each position in the batch another value.
    return bool(tensor.shape.rank < place or tensor.shape.as_list()[-place] == 1)


def _all_plain(states: Sequence[State]) -> bool:
    return all(isinstance(state, Plain) and not state.varies for state in states)


def _along_rows(op: Any, states: Sequence[State]) -> State:
    """Operators on images and the like whose first axis is the batch axis and that keep its rows apart."""
    first, *others = states
    if isinstance(first, Rows) and first.axis == 0 and _all_plain(others):
        return first
    return Unknown(node_of(op))


def _transposed_convolution(op: Any, states: Sequence[State]) -> State:
    sizes, filters, given = states
    if isinstance(given, Rows) and given.axis == 0 and _all_plain([filters]) and isinstance(sizes, Plain):
        return given
    return Unknown(node_of(op))


def _bias(op: Any, states: Sequence[State]) -> State:
    value, bias = states
    rank = op.inputs[0].shape.rank
    if not isinstance(value, Rows) or rank is None or not _all_plain([bias]):
        return Unknown(node_of(op))
    channels = 1 if op.get_attr("data_format") == b"NCHW" and rank > 2 else rank - 1
    return Unknown(node_of(op)) if value.axis == channels else value


def _normalization(op: Any, states: Sequence[State]) -> State | list[State]:
    first, *others = states
    if not isinstance(first, Rows) or first.axis != 0 or not _all_plain(others):
        return Unknown(node_of(op))
    if op.get_attr("is_training"):
        return Mixed(node_of(op))
    return [first, *(Plain() for _ in op.outputs[1:])]


def _axes(op: Any, state: State) -> set[int] | None:
    """The axes that a tensor names, as non-negative numbers; None if unknown."""
    numbers, rank = state.numbers if isinstance(state, Plain) else None, op.inputs[0].shape.rank
    if numbers is None or rank is None or not all(isinstance(number, int) for number in numbers):
        return None
    return {number % rank for number in numbers}


def _reduction(op: Any, states: Sequence[State]) -> State:
    first, axes = states[0], _axes(op, states[1])
    if not isinstance(first, Rows) or axes is None:
        return Unknown(node_of(op))
    if first.axis in axes:
        return Mixed(node_of(op))
    if op.type not in ("ArgMax", "ArgMin") and op.get_attr("keep_dims"):
        return first
    return Rows(first.axis - sum(axis < first.axis for axis in axes), first.exact)


def _scan(op: Any, states: Sequence[State]) -> State:
    first, axes = states[0], _axes(op, states[1])
    if not isinstance(first, Rows) or axes is None:
        return Unknown(node_of(op))
    return Mixed(node_of(op)) if first.axis in axes else first


def _last_axis(op: Any, states: Sequence[State]) -> State:
    first, *others = states
    rank = op.inputs[0].shape.rank
    if not isinstance(first, Rows) or rank is None or not _all_plain(others):
        return Unknown(node_of(op))
    return Mixed(node_of(op)) if first.axis == rank - 1 else first


def _whole(op: Any, states: Sequence[State]) -> State:
    """An operator that works on a whole tensor, or reorders its first axis."""
    first = states[0]
    return Mixed(node_of(op)) if isinstance(first, Rows) and first.axis == 0 else Unknown(node_of(op))


def _quantization(op: Any, states: Sequence[State]) -> State | list[State]:
    """With a given range it is elementwise; else the range is that of the whole batch."""
    first, *others = states
    if not isinstance(first, Rows) or not _all_plain(others) or op.get_attr("axis") != -1:
        return Unknown(node_of(op))
    if op.type == "QuantizeV2":
        return [first, Plain(), Plain()]
    return first if op.get_attr("range_given") else Mixed(node_of(op))


def _distinct(op: Any, states: Sequence[State]) -> State | list[State]:
    """The indices of distinct values number all rows; values looked up by these may be each row's own again."""
    first = states[0]
    if not isinstance(first, Rows) or first.axis != 0:
        return Unknown(node_of(op))
    return [Unknown(node_of(op)), *(Mixed(node_of(op)) for _ in op.outputs[1:])]


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
