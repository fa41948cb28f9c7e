"""Rules of layers: convolutions, pooling, normalisation, recurrent layers, attention, resizing."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.isolation.onnx.elementwise_rules import per_row
from stoker.isolation.onnx.operator_rules import (
    ANOTHER_AXIS,
    BY_PLACE,
    MEAN_OF_ALL,
    MICROSOFT,
    Call,
    rule,
)
from stoker.isolation.onnx.row_states import Value, same
from stoker.isolation.onnx.sizes import Dim, Shape, product, quotient


def _images(call: Call) -> None:
    """Raise unless the first input has its rows, if any, along its first axis, and its channels along the second."""
    if call.integer("channels_last", 0):
        call.undecided("has its channels last")
    batch = call.batch_axis(0)
    if batch == 1:
        call.undecided("takes the rows for channels")
    if batch not in {None, 0}:
        call.mixed("goes over the rows of the batch")


def _windowed(call: Call, image: Shape, kernel: Sequence[Dim]) -> list[Dim]:
    """Return the spatial sizes after a convolution or pooling window."""
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
        call.undecided("adds numbers that are not of its rows")
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
    return call.give([*shape[:2], *[1] * (len(shape) - 2)], call.batch_axis(0))


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
        if call.sizes(3)[0] != shape[0]:
            call.undecided("changes the number of rows")
        return call.give(call.sizes(3), call.batch_axis(0))
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


@rule("LRN", "InstanceNormalization", "GroupNormalization")
@rule("GroupNorm", domain=MICROSOFT)
def _image_normalization(call: Call) -> Value:
    _images(call)
    return per_row(call)


@rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
@rule("LayerNormalization", "SimplifiedLayerNormalization", domain=MICROSOFT)
def _layer_normalization(call: Call) -> list[Value]:
    call.only(0)
    shape, axis = call.shape(0), call.axis(-1)
    call.check_not_over(*range(axis, len(shape)))
    statistics = call.give([*shape[:axis], *[1] * (len(shape) - axis)], call.batch_axis(0))
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
    unknown = Value("lost", reason=f"{call.node} has an output that is not followed")
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
    values = call.shape(2)
    if rank == 4:
        return [call.give([*call.shape(0)[:3], values[3]], 0)]
    heads, kept = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    return _attended(call, product([quotient(values[2], kept), heads]))


def _attended(call: Call, width: Dim) -> list[Value]:
    return [call.give([*call.shape(0)[:2], call.free() if width is None else width], 0)]


@rule("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(call: Call) -> list[Value]:
    for index in (0, 1, 2):
        if call.has(index) and call.batch_axis(index) != 0:
            call.undecided(ANOTHER_AXIS)
    if not call.has(2) or len(call.shape(0)) != 3 or len(call.shape(2)) != 3:
        call.undecided("takes packed numbers, which are not followed")
    call.only(0, 1, 2, 4, 5)
    _masked(call, mask=4, bias=5, past=6)
    return _attended(call, call.shape(2)[2])


@rule("Attention", domain=MICROSOFT)
def _packed_attention(call: Call) -> list[Value]:
    if call.has(4):
        call.undecided("takes a past, which is not followed")
    sizes = call.integers("qkv_hidden_sizes")
    return _from_packed(call, mask=3, bias=5, past=6, width=sizes[2] if sizes else None)


@rule("QAttention", domain=MICROSOFT)
def _quantised_attention(call: Call) -> list[Value]:
    return _from_packed(call, mask=5, bias=9, past=8)


def _from_packed(call: Call, mask: int, bias: int, past: int, width: int | None = None) -> list[Value]:
    """The output of an attention whose query, keys and values are products of the first and the second input."""
    if call.batch_axis(0) != 0 or len(call.shape(0)) != 3:
        call.undecided(ANOTHER_AXIS)
    call.only(0, mask, bias)
    _masked(call, mask, bias, past)
    return _attended(call, width or quotient(call.shape(1)[1], 3))


def _masked(call: Call, mask: int, bias: int, past: int) -> None:
    """Raise Undecided unless the mask is `[rows, keys]`, and the bias is constant or has one entry for each row."""
    if call.has(mask) and (call.batch_axis(mask) != 0 or len(call.shape(mask)) != 2):
        call.undecided("takes a mask that is not of its rows")
    if call.has(bias):
        added = call.value(bias)
        if added.rank != 4 or (added.axis != 0 if added.is_rows else call.shape(bias)[0] != 1):
            call.undecided("adds numbers that are not of its rows")
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
