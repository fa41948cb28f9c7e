"""How layers treat rows: elementwise and reducing operators, convolutions, recurrent ones, attention, ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stoker.isolation.onnx.graph import Tensor
from stoker.isolation.onnx.row_states import (
    ALIGNED,
    ANOTHER_AXIS,
    BY_PLACE,
    CONSTANT_BY_PLACE,
    MEAN_OF_ALL,
    MICROSOFT,
    ML,
    SCALE_OF_ALL,
    Call,
    Dim,
    Shape,
    Size,
    Value,
    product,
    quotient,
    rule,
    same,
)

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
@rule("Gelu", "QuickGelu", domain=MICROSOFT)
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
def _softmax(call: Call) -> Value:
    value = call.value(0)
    if not value.is_rows:
        return same(value.shape)
    axis = call.axis(1 if call.opset < 13 else -1)
    # Before opset 13 all axes from this one on are flattened into one.
    if value.axis == axis or (call.opset < 13 and value.axis > axis):
        call.mixed("goes over the rows of the batch")
    return value


@rule("LpNormalization")
def _lp_normalization(call: Call) -> Value:
    value = call.value(0)
    if value.is_rows and call.axis(-1) == value.axis:
        call.mixed("goes over the rows of the batch")
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
    batch = call.batch_axis(0)
    if batch in axes:
        call.mixed("goes over the rows of the batch")
    if call.integer("keepdims", 1):
        return call.give([1 if axis in axes else size for axis, size in enumerate(shape)], batch)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    return call.give([shape[axis] for axis in kept], None if batch is None else kept.index(batch))


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
    sizes = [int(size) if isinstance(size, float) else size for size in call.content(0)]
    batch = [axis for axis, size in enumerate(sizes) if isinstance(size, Size) and size.rows]
    if len(batch) > 1 or None in sizes:
        call.undecided("makes a tensor whose sizes are not known")
    return call.give(sizes, batch[0] if batch else None)


# How layers treat rows: convolutions, pooling, normalisation, recurrent layers, attention, resizing.


def _images(call: Call) -> None:
    """Raise unless the first input has its rows, if any, along its first axis."""
    batch = call.batch_axis(0)
    if batch == 1:
        call.undecided("takes the rows for channels")
    if batch not in {None, 0}:
        call.mixed("goes over the rows of the batch")


def _windowed(call: Call, image: Shape, kernel: Sequence[Dim]) -> list[Dim]:
    """The spatial sizes after a convolution or pooling window."""
    sides = image[2:]
    strides = call.integers("strides") or (1,) * len(sides)
    dilations = call.integers("dilations") or (1,) * len(sides)
    pads = call.integers("pads") or (0,) * (2 * len(sides))
    mode = call.text("auto_pad", "NOTSET")
    sizes: list[Dim] = []
    for axis, side in enumerate(sides):
        window = kernel[axis]
        if not isinstance(side, int) or not isinstance(window, int) or call.integer("ceil_mode", 0):
            sizes.append(call.free())
        elif mode.startswith("SAME"):
            sizes.append(-(-side // strides[axis]))
        else:
            padding = 0 if mode == "VALID" else pads[axis] + pads[axis + len(sides)]
            reach = (window - 1) * dilations[axis] + 1
            sizes.append((side + padding - reach) // strides[axis] + 1)
    return sizes


def _convolved(call: Call, image: int, weights: int) -> Value:
    _images(call)
    shape, kernel = call.shape(image), call.shape(weights)
    sides = _windowed(call, shape, call.integers("kernel_shape") or kernel[2:])
    return call.give([shape[0], kernel[0], *sides], call.batch_axis(image))


@rule("Conv", "ConvInteger")
def _convolution(call: Call) -> Value:
    call.only(0)
    return _convolved(call, 0, 1)


@rule("FusedConv", domain=MICROSOFT)
def _fused_convolution(call: Call) -> Value:
    call.only(0, 3)
    result = _convolved(call, 0, 1)
    if call.has(3) and call.batch_axis(3) != call.batch_axis(0):
        call.undecided("adds what is not of its rows")
    return result


@rule("QLinearConv")
def _quantised_convolution(call: Call) -> Value:
    call.only(0)
    return _convolved(call, 0, 3)


@rule("ConvTranspose")
def _transposed_convolution(call: Call) -> Value:
    call.only(0)
    _images(call)
    shape, kernel = call.shape(0), call.shape(1)
    channels = product([kernel[1], call.integer("group", 1)])
    sides: list[Dim] = [call.free() for _ in shape[2:]]
    strides = call.integers("strides") or (1,) * len(sides)
    if call.text("auto_pad", "NOTSET") == "NOTSET" and "output_shape" not in call.attributes:
        dilations = call.integers("dilations") or (1,) * len(sides)
        pads = call.integers("pads") or (0,) * (2 * len(sides))
        added = call.integers("output_padding") or (0,) * len(sides)
        for axis, (side, window) in enumerate(zip(shape[2:], kernel[2:], strict=True)):
            if isinstance(side, int) and isinstance(window, int):
                reach = (window - 1) * dilations[axis] + 1
                cut = pads[axis] + pads[axis + len(sides)]
                sides[axis] = strides[axis] * (side - 1) + added[axis] + reach - cut
    return call.give([shape[0], channels, *sides], call.batch_axis(0))


@rule("RoiAlign")
def _regions(call: Call) -> Value:
    if call.batch_axis(0) is not None and call.batch_axis(2) is not None:
        call.mixed("reads the rows that another input names")
    call.undecided(BY_PLACE)


@rule("MaxPool", "AveragePool", "LpPool")
@rule("QLinearAveragePool", domain=MICROSOFT)
def _pool(call: Call) -> list[Value]:
    call.only(0)
    _images(call)
    shape = call.shape(0)
    if call.integer("channels_last", 0):
        call.undecided("has its channels last")
    sides = _windowed(call, shape, call.integers("kernel_shape") or ())
    pooled = call.give([*shape[:2], *sides], call.batch_axis(0))
    if not pooled.is_rows:
        return [pooled] * 2
    places = Value("lost", reason=f"{call.node} counts its places from the first row of the batch")
    return [pooled, places]


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
def _global_pool(call: Call) -> Value:
    call.only(0)
    _images(call)
    shape = call.shape(0)
    if call.integer("channels_last", 0):
        call.undecided("has its channels last")
    return call.give([*shape[:2], *[1] * (len(shape) - 2)], call.batch_axis(0))


@rule("LRN")
def _local_response(call: Call) -> Value:
    _images(call)
    return per_row(call)


@rule("GridSample")
def _grid_sample(call: Call) -> Value:
    if call.batch_axis(0) != 0 or call.batch_axis(1) != 0:
        call.undecided("takes a grid or an image that is not of its rows")
    shape, grid = call.shape(0), call.shape(1)
    return call.give([*shape[:2], *grid[1:-1]], 0)


@rule("Resize", "Upsample", parameters=(1, 2, 3))
def _resize(call: Call) -> Value:
    call.only(0)
    _images(call)
    shape = call.shape(0)
    if call.text("coordinate_transformation_mode") == "tf_crop_and_resize" or "axes" in call.attributes:
        call.undecided("takes a part of its image")
    scales = 1 if call.opset < 11 else 2
    if call.opset >= 11 and call.has(3) and call.value(3).content != ():
        asked = call.content(3)
        if asked[0] != shape[0]:
            call.undecided("changes the number of rows")
        return call.give(
            [int(size) if isinstance(size, float) else size for size in asked], call.batch_axis(0)
        )
    factors = call.content(scales) if call.has(scales) else call.attributes.get("scales")
    if not isinstance(factors, tuple) or len(factors) != len(shape) or factors[0] != 1:
        call.undecided("changes the number of rows")
    sizes = [
        int(size * factor) if isinstance(size, int) and isinstance(factor, int | float) else call.free()
        for size, factor in zip(shape, factors, strict=True)
    ]
    return call.give([shape[0], *sizes[1:]], call.batch_axis(0))


@rule("BatchNormalization")
def _batch_normalization(call: Call) -> list[Value]:
    value = call.value(0)
    call.only(0)
    outputs = sum(map(bool, call.node.outputs))
    if value.is_rows:
        if call.integer("training_mode", 0) or (call.opset < 14 and outputs > 1):
            call.mixed(MEAN_OF_ALL)
        if value.axis == 1 or not call.integer("spatial", 1):
            call.undecided("takes the rows for channels")
    return [value if value.is_rows else same(value.shape), *[same()] * (len(call.node.outputs) - 1)]


@rule("InstanceNormalization")
@rule("GroupNormalization")
@rule("GroupNorm", domain=MICROSOFT)
def _image_normalization(call: Call) -> Value:
    _images(call)
    return per_row(call)


@rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
@rule("LayerNormalization", "SimplifiedLayerNormalization", domain=MICROSOFT)
def _layer_normalization(call: Call) -> list[Value]:
    call.only(0)
    shape, axis, batch = call.shape(0), call.axis(-1), call.batch_axis(0)
    if batch is not None and batch >= axis:
        call.mixed("goes over the rows of the batch")
    statistics = call.give([*shape[:axis], *[1] * (len(shape) - axis)], batch)
    return [per_row(call), statistics, statistics]


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_normalization(call: Call) -> list[Value]:
    call.only(0, 1)
    first, second = call.value(0), call.value(1)
    if not (first.is_rows and first.axis == 0) or (second.is_rows and second.axis):
        call.undecided(ANOTHER_AXIS)
    if len(call.shape(0)) < 2:
        call.mixed("goes over the rows of the batch")
    total = call.broadcast([first, second])
    unknown = Value("lost", reason=f"{call.node} gives what is not followed")
    return [total, unknown, unknown, total]


@rule("MeanVarianceNormalization")
def _mean_variance(call: Call) -> Value:
    value = call.value(0)
    axes = call.integers("axes") or (0, 2, 3)
    rank = len(call.shape(0))
    if value.is_rows and value.axis in {call.from_front(axis, rank) for axis in axes}:
        call.mixed(MEAN_OF_ALL)
    return per_row(call)


@rule("RNN", "GRU", "LSTM")
def _recurrent(call: Call) -> list[Value]:
    shape = call.shape(0)
    batch_first = bool(call.integer("layout", 0))
    batch = 0 if batch_first else 1
    if call.batch_axis(0) not in {None, batch}:
        call.mixed("takes the rows of the batch for steps in time or for numbers of one step")
    of_rows = call.batch_axis(0) is not None
    # Lengths are a vector; states are [directions, batch, hidden], or batch first.
    states = [index for index in (5, 6) if call.has(index)]
    call.only(0, 4, *states)
    for index in (4, *states):
        if call.has(index) and call.batch_axis(index) != ((0 if index == 4 else batch) if of_rows else None):
            call.undecided("starts with a state, or has lengths, that are not of its rows")
    rows = shape[batch]
    time = shape[1 - batch]
    directions = 2 if call.text("direction") == "bidirectional" else 1
    hidden: Dim = call.integer("hidden_size", 0) or call.free()
    if batch_first:
        every: list[Dim] = [rows, time, directions, hidden]
        last: list[Dim] = [rows, directions, hidden]
    else:
        every, last = [time, directions, rows, hidden], [directions, rows, hidden]
    final = call.give(last, batch if of_rows else None)
    return [call.give(every, (0 if batch_first else 2) if of_rows else None), final, final]


@rule("Attention")
def _attention(call: Call) -> list[Value]:
    if not (call.batch_axis(0) == call.batch_axis(1) == call.batch_axis(2) == 0):
        call.undecided(ANOTHER_AXIS)
    rank = len(call.shape(0))
    for index, value in enumerate(call.inputs[3:], 3):
        if value is not None and value.is_rows and (value.axis != 0 or (index == 3 and value.rank != 4)):
            call.undecided("takes a mask or a past that is not of its rows")
    if call.has(4) or call.has(5) or call.has(6):
        call.undecided("takes a past, which is not followed")
    shape, values = call.shape(0), call.shape(2)
    if rank == 4:
        return [call.give([*shape[:3], values[3]], 0)]
    heads, kept = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    width = product([quotient(values[2], kept), heads])
    return [call.give([*shape[:2], width if width is not None else call.free()], 0)]


@rule("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(call: Call) -> list[Value]:
    for index in (0, 1, 2):
        if call.has(index) and call.batch_axis(index) != 0:
            call.undecided(ANOTHER_AXIS)
    if not call.has(2) or len(call.shape(0)) != 3 or len(call.shape(2)) != 3:
        call.undecided("takes packed numbers, which are not followed")
    call.only(0, 1, 2, 4, 5)
    _masked(call, mask=4, bias=5, past=6)
    shape = call.shape(0)
    return [call.give([*shape[:2], call.shape(2)[2]], 0)]


@rule("Attention", domain=MICROSOFT)
def _packed_attention(call: Call) -> list[Value]:
    if call.batch_axis(0) != 0 or len(call.shape(0)) != 3:
        call.undecided(ANOTHER_AXIS)
    call.only(0, 3, 5)
    _masked(call, mask=3, bias=5, past=6)
    if call.has(4):
        call.undecided("takes a past, which is not followed")
    shape, weights = call.shape(0), call.shape(1)
    sizes = call.integers("qkv_hidden_sizes")
    width = sizes[2] if sizes else quotient(weights[1], 3)
    return [call.give([*shape[:2], width if width is not None else call.free()], 0)]


@rule("QAttention", domain=MICROSOFT)
def _quantised_attention(call: Call) -> list[Value]:
    if call.batch_axis(0) != 0 or len(call.shape(0)) != 3:
        call.undecided(ANOTHER_AXIS)
    call.only(0, 5)
    _masked(call, mask=5, bias=9, past=8)
    shape, weights = call.shape(0), call.shape(1)
    width = quotient(weights[1], 3)
    return [call.give([*shape[:2], width if width is not None else call.free()], 0)]


def _masked(call: Call, mask: int, bias: int, past: int) -> None:
    """Raise Undecided unless the mask is `[rows, keys]`, and the bias is constant or has one entry for each row."""
    if call.has(mask) and (call.batch_axis(mask) != 0 or len(call.shape(mask)) != 2):
        call.undecided("takes a mask that is not of its rows")
    if call.has(bias):
        added = call.value(bias)
        if added.rank != 4 or (added.axis != 0 if added.is_rows else call.shape(bias)[0] != 1):
            call.undecided("adds what is not of its rows")
    if any(call.has(index) for index in range(past, len(call.inputs)) if index != bias):
        call.undecided("takes a past, which is not followed")


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def _embedding(call: Call) -> list[Value]:
    call.only(0, 1, 7, 8)
    for index in (0, 1, 7, 8):
        if call.has(index) and (call.batch_axis(index) != 0 or len(call.shape(index)) != 2):
            call.undecided(ANOTHER_AXIS)
    words, table = call.shape(0), call.shape(2)
    embedded = call.give([*words, table[1]], 0)
    return [embedded, call.give(words[:1], 0), embedded]


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _quantised_pair(call: Call) -> Value:
    call.only(0, 3)
    return call.broadcast([call.value(0), call.value(3)])


@rule("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def _quantised_function(call: Call) -> Value:
    return per_row(call)


@rule("QGemm", domain=MICROSOFT)
def _quantised_gemm(call: Call) -> Value:
    call.only(0)
    if call.integer("transA", 0) or call.batch_axis(0) != 0:
        call.mixed("adds up what the rows hold")
    weights = call.shape(3)
    return call.give([call.shape(0)[0], weights[0 if call.integer("transB", 0) else 1]], 0)


@rule("QLinearSoftmax", domain=MICROSOFT)
def _quantised_softmax(call: Call) -> Value:
    batch = call.batch_axis(0)
    axis = call.axis(-1)
    if batch is not None and (batch == axis or (call.integer("opset", 13) < 13 and batch > axis)):
        call.mixed("goes over the rows of the batch")
    return per_row(call)


# How operators of classical machine learning (ai.onnx.ml) and text operators treat rows.


def _table(call: Call, index: int = 0) -> Dim:
    """The number of rows of a table; raises Mixed for a vector, which is treated as one row."""
    shape = call.shape(index)
    if call.batch_axis(index) is not None and len(shape) == 1:
        call.mixed("takes the batch for one row")
    if call.batch_axis(index) not in {None, 0} or len(shape) != 2:
        call.undecided(ANOTHER_AXIS)
    return shape[0]


@rule("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier", domain=ML)
def _classifier(call: Call) -> list[Value]:
    rows = _table(call)
    batch = call.batch_axis(0)
    return [call.give([rows], batch), call.give([rows, call.free()], batch)]


@rule("TreeEnsembleRegressor", "TreeEnsemble", "LinearRegressor", "SVMRegressor", domain=ML)
def _regressor(call: Call) -> Value:
    call.only(0)
    targets = call.attributes.get("n_targets", call.attributes.get("targets", 1))
    known = isinstance(targets, int) and call.node.operator != "SVMRegressor"
    return call.give(
        [_table(call), int(targets) if known and isinstance(targets, int) else call.free()],
        call.batch_axis(0),
    )


@rule("Normalizer", domain=ML)
def _normalizer(call: Call) -> Value:
    _table(call)
    return per_row(call)


@rule("Scaler", "Imputer", domain=ML)
def _column_by_column(call: Call) -> Value:
    if call.batch_axis(0) is not None:
        _table(call)
    return per_row(call)


@rule("Binarizer", "LabelEncoder", "CategoryMapper", "ZipMap", domain=ML)
def _element_by_element(call: Call) -> Value:
    return per_row(call)


@rule("TfIdfVectorizer")
def _counts_of_words(call: Call) -> Value:
    return call.give([_table(call), call.free()], call.batch_axis(0))


@rule("OneHotEncoder", domain=ML)
def _one_hot(call: Call) -> Value:
    return call.give([*call.shape(0), call.free()], call.batch_axis(0))


@rule("ArrayFeatureExtractor", domain=ML)
def _columns(call: Call) -> Value:
    call.only(0)
    rows = _table(call)
    return call.give([rows, call.free()], call.batch_axis(0))


@rule("FeatureVectorizer", domain=ML)
def _beside_each_other(call: Call) -> Value:
    values = [value for value in call.inputs if value is not None]
    rows = [_table(call, index) for index in range(len(values))]
    if any(not value.is_rows for value in values):
        call.undecided("puts a constant beside the rows")
    return call.give([rows[0], call.free()], 0)


@rule("StringNormalizer")
def _string_normalizer(call: Call) -> Value:
    if call.value(0).is_rows and call.attributes.get("stopwords"):
        call.mixed("drops words of the batch")
    return per_row(call)


@rule("StringSplit")
def _string_split(call: Call) -> list[Value]:
    value = call.value(0)
    if not value.is_rows:
        return [same(), same(value.shape)]
    words = Value(
        "lost", finding="mixed", reason=f"{call.node} makes all rows as long as the one with the most words"
    )
    return [words, value]


@rule("Tokenizer", domain=MICROSOFT)
def _tokenizer(call: Call) -> Value:
    if call.value(0).is_rows:
        # Models converted from scikit-learn's vectorisers count words and ignore the padding: the test with rows
        # tells.
        call.undecided("makes all rows as long as the one with the most words")
    return same()
