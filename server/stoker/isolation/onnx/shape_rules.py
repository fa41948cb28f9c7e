"""Rules of operators that move axes or elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stoker.isolation.onnx.operator_rules import BY_PLACE, MICROSOFT, Call, rule
from stoker.isolation.onnx.row_states import UNKNOWN_AXIS, Value, same, sized
from stoker.isolation.onnx.sizes import Dim, Shape, Size, depends_on_rows, product, quotient

_END: Final = 1_000_000
"""More rows than any batch has; exporters write 10^9 or the largest integer for "to the end"."""


def _rearranged(call: Call, value: Value, sizes: Sequence[Dim]) -> Value:
    """Return the state of the same elements in the same order with another shape.

    The elements of a row are contiguous blocks, one for each index of the axes before the batch axis. They remain
    blocks along one axis if the product of the sizes before that axis stays the same.
    """
    if not value.is_rows or value.shape is None:
        return same(sizes)
    before = product(value.shape[: value.axis])
    block = quotient(product(value.shape[value.axis :]), Size(1, 1))
    for axis, size in enumerate(sizes):
        if not depends_on_rows(size):
            continue
        behind = quotient(block, product(sizes[axis + 1 :]))
        if before is None or behind is None:
            break
        if product(sizes[:axis]) == before and product([behind, Size(1, 1)]) == size:
            return call.give(sizes, axis)
    return call.undecided(UNKNOWN_AXIS)


@rule("Reshape", parameters=(1,))
def _reshape(call: Call) -> Value:
    call.only(0)
    value = call.value(0)
    if not value.is_rows and not (call.has(1) and call.value(1).content):
        return same()
    shape = call.shape(0)
    sizes: list[Dim] = call.sizes(1) if call.has(1) else [*(call.integers("shape") or ())]
    for place, size in enumerate(sizes):
        if size == 0 and not call.integer("allowzero", 0):
            sizes[place] = shape[place] if place < len(shape) else None
        elif size is None and not value.is_rows:
            sizes[place] = call.free()
    if -1 in sizes:
        place = sizes.index(-1)
        others = product([size for size in sizes if size != -1])
        inferred = quotient(product(shape), others)
        if inferred is None and value.is_rows:
            _raise_if_rows_are_cut(call, shape, others)
        sizes[place] = inferred if inferred is not None or value.is_rows else call.free()
    return _rearranged(call, value, sizes)


def _raise_if_rows_are_cut(call: Call, shape: Shape, others: Dim) -> None:
    """Raise Mixed if new rows surely consist of parts of several rows."""
    block = quotient(product(shape), Size(1, 1))
    if isinstance(block, int) and isinstance(others, int) and others > 0 and block % others:
        call.mixed("makes rows of parts of several rows of the batch")


@rule("Flatten")
def _flatten(call: Call) -> Value:
    shape = call.shape(0)
    axis = call.axis(1)
    return _rearranged(call, call.value(0), [product(shape[:axis]), product(shape[axis:])])


@rule("Squeeze")
def _squeeze(call: Call) -> Value:
    call.only(0)
    shape, batch = call.shape(0), call.batch_axis(0)
    axes = call.list_of("axes")
    if axes is None:
        if not all(isinstance(size, int) for axis, size in enumerate(shape) if axis != batch):
            call.undecided("drops axes that are not known")
        if batch is not None and shape[batch] == Size(1, 1):
            call.undecided("drops the axis of the rows if there is one row")
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    dropped = {call.from_front(axis, len(shape)) for axis in axes}
    if batch in dropped:
        call.undecided("drops the axis of the rows")
    return call.take_axes([axis for axis in range(len(shape)) if axis not in dropped])


@rule("Unsqueeze")
def _unsqueeze(call: Call) -> Value:
    call.only(0)
    shape, batch = call.shape(0), call.batch_axis(0)
    axes = call.list_of("axes") or ()
    rank = len(shape) + len(axes)
    new = {call.from_front(axis, rank) for axis in axes}
    old = [axis for axis in range(rank) if axis not in new]
    sizes: list[Dim] = [1] * rank
    for axis, size in zip(old, shape, strict=True):
        sizes[axis] = size
    return call.give(sizes, None if batch is None else old[batch])


@rule("Transpose")
def _transpose(call: Call) -> Value:
    axes = range(len(call.shape(0)))
    order = call.integers("perm") or tuple(reversed(axes))
    if sorted(order) != list(axes):
        call.undecided("has no order of its axes")
    return call.take_axes(order)


def _target_sizes(call: Call) -> list[Dim]:
    """Return sizes that are an input; raises Undecided if one depends on N in an unknown way."""
    sizes = call.sizes(1)
    if None in sizes and call.value(1).kind == "sized":
        call.undecided("takes a size from the number of rows")
    return sizes


@rule("Expand", parameters=(1,))
def _expand(call: Call) -> Value:
    call.only(0)
    value, shape = call.value(0), call.shape(0)
    sizes = _target_sizes(call)
    rank = max(len(shape), len(sizes))
    own: list[Dim] = [*[1] * (rank - len(shape)), *shape]
    targets: list[Dim] = [*[1] * (rank - len(sizes)), *sizes]
    batch = value.axis + rank - len(shape) if value.is_rows else None
    for axis, (size, new) in enumerate(zip(own, targets, strict=True)):
        if axis == batch:
            if new not in {1, size}:
                call.undecided("stretches the axis of the rows")
        elif depends_on_rows(new):
            if batch is not None or size != 1:
                call.undecided("stretches another axis to as many as there are rows")
            batch, own[axis] = axis, new
        elif new != 1:
            own[axis] = new if size == 1 or size == new else size if new is None else new
    return call.give(own, batch)


@rule("Tile", parameters=(1,))
def _tile(call: Call) -> Value:
    call.only(0)
    shape, batch = call.shape(0), call.batch_axis(0)
    repeats = _target_sizes(call)
    if len(repeats) != len(shape):
        call.undecided("has no number for each axis")
    by_rows = [axis for axis, count in enumerate(repeats) if depends_on_rows(count)]
    if (batch is not None and (repeats[batch] != 1 or by_rows)) or len(by_rows) > 1:
        call.undecided("repeats rows")
    sizes = [product([size, count]) for size, count in zip(shape, repeats, strict=True)]
    return call.give(sizes, by_rows[0] if by_rows else batch)


@rule("Concat")
def _concat(call: Call) -> Value:
    return _concatenated(call, [value for value in call.inputs if value is not None], call.integer("axis", 1))


@rule("QLinearConcat", domain=MICROSOFT)
def _quantised_concat(call: Call) -> Value:
    places = range(2, len(call.inputs), 3)
    call.only(*places)
    return _concatenated(call, [call.value(index) for index in places], call.integer("axis", 1))


def _concatenated(call: Call, values: Sequence[Value], axis: int) -> Value:
    if len(values) == 1:
        return values[0]
    shapes = [value.shape for value in values if value.shape is not None]
    batch = {value.axis for value in values if value.is_rows}
    if not batch and len(shapes) < len(values):
        return same()
    axis = call.from_front(axis, max(map(len, shapes)))
    if axis in batch:
        call.mixed("joins along the batch")
    if len(batch) > 1:
        call.mixed("puts every row beside every other one")
    if batch and any(not value.is_rows for value in values):
        call.undecided("puts a constant beside the rows")
    sizes = list(shapes[0])
    ends = [shape[axis] for shape in shapes]
    whole = [size for size in ends if isinstance(size, int)]
    sizes[axis] = sum(whole) if len(whole) == len(ends) else call.free()
    return call.give(sizes, next(iter(batch), None))


@rule("Split")
def _split(call: Call) -> list[Value]:
    call.only(0)
    value, shape = call.value(0), list(call.shape(0))
    axis, count = call.axis(0), len(call.node.outputs)
    if count == 1:
        return [value]
    if call.batch_axis(0) == axis:
        call.mixed("takes the batch apart")
    parts = call.list_of("split")
    size = shape[axis]
    even = quotient(size, count)
    outputs = []
    for place in range(count):
        shape[axis] = parts[place] if parts is not None else even if even is not None else call.free()
        outputs.append(call.give(shape, call.batch_axis(0)))
    return outputs


@rule("Slice", parameters=(2,))
def _slice(call: Call) -> Value:
    call.only(0)
    shape, batch = list(call.shape(0)), call.batch_axis(0)
    for axis, start, end, step in call.slices():
        size = shape[axis]
        whole = start == 0 and step == 1 and (end == size or (isinstance(end, int | float) and end >= _END))
        if whole:
            continue
        if axis == batch:
            call.mixed("takes rows by their place in the batch")
        if depends_on_rows(end) or end is None:
            call.undecided("takes a size from the number of rows")
        if isinstance(size, int) and isinstance(end, int | float):
            shape[axis] = len(range(*slice(start, int(end), step).indices(size)))
        else:
            shape[axis] = call.free()
    return call.give(shape, batch)


@rule("Gather")
def _gather(call: Call) -> Value:
    data, places = call.shape(0), call.shape(1)
    axis = call.axis(0)
    of_data, of_places = call.batch_axis(0), call.batch_axis(1)
    if of_data == axis:
        call.mixed("takes rows by their place in the batch")
    if of_data is not None and of_places is not None:
        call.mixed("puts every row beside every other one")
    batch = None
    if of_data is not None:
        batch = of_data if of_data < axis else of_data + len(places) - 1
    elif of_places is not None:
        batch = axis + of_places
    return call.give([*data[:axis], *places, *data[axis + 1 :]], batch)


@rule("GatherElements")
def _gather_elements(call: Call) -> Value:
    axis = call.axis(0)
    of_data, of_places = call.batch_axis(0), call.batch_axis(1)
    if of_data == axis:
        call.mixed("takes rows by their place in the batch")
    looked_up = of_data is None and of_places == axis
    if of_places is None or not (looked_up or of_data == of_places):
        call.undecided(BY_PLACE)
    return call.value(1)


@rule("GatherND")
def _gather_nd(call: Call) -> Value:
    data, places = call.shape(0), call.shape(1)
    shared = call.integer("batch_dims", 0)
    depth = places[-1] if places else None
    if not isinstance(depth, int):
        call.undecided("takes places of an unknown number of axes")
    of_data, of_places = call.batch_axis(0), call.batch_axis(1)
    if of_places == len(places) - 1:
        call.undecided("takes places that are spread over the rows")
    if of_data is not None and (of_data >= shared or of_places != of_data):
        call.undecided(BY_PLACE)
    if of_data is None and of_places is not None and of_places < shared:
        call.undecided(BY_PLACE)
    return call.give([*places[:-1], *data[shared + depth :]], of_places)


@rule("ScatterElements", "Scatter")
def _scatter_elements(call: Call) -> Value:
    axis = call.axis(0)
    batch = call.batch_axis(0)
    if batch is None or batch == axis or call.batch_axis(1) != batch or call.batch_axis(2) != batch:
        call.undecided(BY_PLACE)
    return call.value(0)


@rule("Compress")
def _compress(call: Call) -> Value:
    if call.batch_axis(1) is not None:
        call.mixed("drops rows by the contents of the batch")
    value = call.value(0)
    if not value.is_rows:
        return same()
    if "axis" not in call.attributes or call.axis(0) == value.axis:
        call.mixed("takes rows by their place in the batch")
    shape = list(call.shape(0))
    shape[call.axis(0)] = call.free()
    return call.give(shape, value.axis)


@rule("Pad")
@rule("Pad", domain=MICROSOFT)
def _pad(call: Call) -> Value:
    call.only(0)
    shape, batch = list(call.shape(0)), call.batch_axis(0)
    old = call.opset < 11 and not call.node.domain
    pads = call.integers("pads") or () if old else call.numbers(1)
    given = call.numbers(3) if call.has(3) and not old else range(len(shape))
    axes = [call.from_front(axis, len(shape)) for axis in given]
    if len(pads) != 2 * len(axes):
        call.undecided("has no numbers for each axis")
    for place, axis in enumerate(axes):
        added = pads[place] + pads[place + len(axes)]
        if axis == batch and (pads[place] or pads[place + len(axes)]):
            call.undecided("adds to the batch")
        size = shape[axis]
        if added or pads[place]:
            shape[axis] = size + added if isinstance(size, int) else call.free()
    return call.give(shape, batch)


@rule("ReverseSequence")
def _reverse_sequence(call: Call) -> Value:
    value = call.value(0)
    if not value.is_rows:
        call.only()
        return same(value.shape)
    if value.axis == call.integer("time_axis", 0):
        call.mixed("turns the rows of the batch round")
    if value.axis != call.integer("batch_axis", 1) or call.batch_axis(1) != 0:
        call.undecided(BY_PLACE)
    return value


@rule("EyeLike")
def _eye(call: Call) -> Value:
    value = call.value(0)
    return sized(value.shape) if value.is_rows else same(value.shape)


@rule("DepthToSpace", "SpaceToDepth")
def _depth_to_space(call: Call) -> Value:
    shape = call.shape(0)
    if call.batch_axis(0) not in {None, 0} or len(shape) != 4:
        call.undecided("moves numbers of several rows")
    block = call.integer("blocksize", 1)
    deep = call.node.operator == "SpaceToDepth"
    channels, *sides = shape[1:]
    sizes = [
        (product([channels, block * block]) if deep else quotient(channels, block * block)) or call.free(),
        *((quotient(side, block) if deep else product([side, block])) or call.free() for side in sides),
    ]
    return call.give([shape[0], *sizes], call.batch_axis(0))
