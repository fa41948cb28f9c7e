"""Rules of TensorFlow's operators that move axes, make tensors of a shape, or use lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from stoker.isolation.tensorflow.row_states import (
    Listed,
    Plain,
    Rows,
    Rule,
    Size,
    State,
    Unknown,
    join,
    node_of,
)


def _numbers(state: State) -> tuple[Any, ...] | None:
    return state.numbers if isinstance(state, Plain) else None


def _vary(sizes: Sequence[Any]) -> bool:
    return any(size in (Size.ROWS, Size.VARYING) for size in sizes)


def _reshape(op: Any, states: Sequence[State]) -> State:
    """Rows are contiguous, each of equally many elements; they stay apart in a shape that splits no row."""
    given, shape = states
    unknown = Unknown(node_of(op))
    sizes = _numbers(shape)
    static = op.outputs[0].shape
    if sizes is None and isinstance(shape, Plain) and static.rank is not None:
        sizes = tuple(Size.VARYING if size is None else size for size in static.as_list())
    elif sizes is not None and static.rank == len(sizes):
        known = static.as_list()
        sizes = tuple(k if size is Size.FIXED and k else size for k, size in zip(known, sizes, strict=True))
    if not isinstance(given, Rows) or given.axis != 0 or not sizes:
        return unknown
    first, *others = sizes
    if _vary(others):
        return unknown
    if first is Size.ROWS:
        return Rows(0)
    if first != -1 and isinstance(first, int):
        return unknown
    if not all(isinstance(size, int) and size > 0 for size in others):
        return unknown
    inner, whole = _known_elements(op.inputs[0])
    elements = math.prod(others)
    if inner % elements:
        return unknown
    return Rows(0, given.exact and whole and inner == elements)


def _known_elements(tensor: Any) -> tuple[int, bool]:
    """A divisor of the number of elements at each index of the first axis, and whether it is that number."""
    sizes = tensor.shape.as_list()[1:] if tensor.shape.rank is not None else []
    elements = 1
    for size in reversed(sizes):
        if size is None:
            return elements, False
        elements *= size
    return elements, tensor.shape.rank is not None


def _transpose(op: Any, states: Sequence[State]) -> State:
    given, order = states[0], _numbers(states[1])
    if isinstance(given, Rows) and order is not None and given.axis in order:
        return Rows(order.index(given.axis), given.exact)
    return Unknown(node_of(op))


def _expand_dims(op: Any, states: Sequence[State]) -> State:
    given, axes, rank = states[0], _numbers(states[1]), op.inputs[0].shape.rank
    if not isinstance(given, Rows) or rank is None or axes is None or not isinstance(axes[0], int):
        return Unknown(node_of(op))
    return Rows(given.axis + (axes[0] % (rank + 1) <= given.axis), given.exact)


def _squeeze(op: Any, states: Sequence[State]) -> State:
    (given,) = states
    rank, named = op.inputs[0].shape.rank, op.get_attr("squeeze_dims")
    # Without named axes, a batch axis of size 1 would be dropped too.
    if not isinstance(given, Rows) or rank is None or not named:
        return Unknown(node_of(op))
    axes = {axis % rank for axis in named}
    if given.axis in axes:
        return Unknown(node_of(op))
    return Rows(given.axis - sum(axis < given.axis for axis in axes), given.exact)


def _strided_slice(op: Any, states: Sequence[State]) -> State:
    unknown = Unknown(node_of(op))
    given, *places = states
    rank, count = op.inputs[0].shape.rank, op.inputs[1].shape.num_elements()
    if not isinstance(given, Rows) or rank is None or count is None:
        return unknown
    if not all(isinstance(place, Plain) and not place.varies for place in places):
        return unknown
    masks = {
        name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    taken = out = 0
    for index in range(count):
        bit = 1 << index
        if masks["ellipsis"] & bit:
            later = sum(not masks["new_axis"] & 1 << i for i in range(index + 1, count))
            span = rank - taken - later
            if taken <= given.axis < taken + span:
                return Rows(out + given.axis - taken, given.exact)
            taken, out = taken + span, out + span
        elif masks["new_axis"] & bit:
            out += 1
        elif taken == given.axis:
            return Rows(out, given.exact) if _is_whole(masks, places, index) else unknown
        else:
            taken, out = taken + 1, out + (not masks["shrink_axis"] & bit)
    return Rows(out + given.axis - taken, given.exact)


def _is_whole(masks: dict[str, int], places: Sequence[State], index: int) -> bool:
    """Whether a slice takes a whole axis in order."""
    begin, _, stride = (_numbers(place) for place in places)
    bit = 1 << index
    first = bool(masks["begin"] & bit) or (begin is not None and begin[index] == 0)
    forwards = stride is not None and stride[index] == 1
    return first and forwards and bool(masks["end"] & bit) and not masks["shrink_axis"] & bit


def _slice(op: Any, states: Sequence[State]) -> State:
    given, begin, size = states[0], _numbers(states[1]), _numbers(states[2])
    if not isinstance(given, Rows) or begin is None or size is None or _vary(begin):
        return Unknown(node_of(op))
    whole = begin[given.axis] == 0 and size[given.axis] in (-1, Size.ROWS if given.exact else -1)
    others = [item for axis, item in enumerate(size) if axis != given.axis]
    return given if whole and not _vary(others) else Unknown(node_of(op))


def _pad(op: Any, states: Sequence[State]) -> State:
    given, padding, *others = states
    value = padding.value if isinstance(padding, Plain) and not padding.varies else None
    alike = all(isinstance(state, Plain) and not state.varies for state in others)
    if isinstance(given, Rows) and value is not None and value[given.axis] == (0, 0) and alike:
        return given
    return Unknown(node_of(op))


def _concat(op: Any, states: Sequence[State]) -> State:
    *parts, axis = states
    numbers, rank = _numbers(axis), op.outputs[0].shape.rank
    rows = {part for part in parts if isinstance(part, Rows)}
    # All parts have equal sizes along the batch axis: a part without rows would differ for each row.
    if numbers is None or rank is None or len(rows) != 1 or not all(isinstance(part, Rows) for part in parts):
        return Unknown(node_of(op))
    (given,) = rows
    if not isinstance(numbers[0], int) or numbers[0] % rank == given.axis:
        return Unknown(node_of(op))
    return given


def _pack(op: Any, states: Sequence[State]) -> State:
    rows, rank = set(states), op.outputs[0].shape.rank
    (given, *others) = rows
    if others or not isinstance(given, Rows) or rank is None:
        return Unknown(node_of(op))
    return Rows(given.axis + (op.get_attr("axis") % rank <= given.axis), given.exact)


def _unpack(op: Any, states: Sequence[State]) -> State:
    (given,) = states
    rank = op.inputs[0].shape.rank
    if not isinstance(given, Rows) or rank is None or op.get_attr("axis") % rank == given.axis:
        return Unknown(node_of(op))
    return Rows(given.axis - (op.get_attr("axis") % rank < given.axis), given.exact)


def _split(op: Any, states: Sequence[State]) -> State:
    axis, given = (states[0], states[1]) if op.type == "Split" else (states[2], states[0])
    numbers, rank = _numbers(axis), op.outputs[0].shape.rank
    alike = op.type == "Split" or (isinstance(states[1], Plain) and not states[1].varies)
    if not isinstance(given, Rows) or numbers is None or rank is None or not alike:
        return Unknown(node_of(op))
    if not isinstance(numbers[0], int) or numbers[0] % rank == given.axis:
        return Unknown(node_of(op))
    return given


def _fill(op: Any, states: Sequence[State]) -> State:
    sizes, value = _numbers(states[0]), states[1]
    alike = isinstance(value, Plain) and not value.varies
    if sizes is None or not alike or sizes.count(Size.ROWS) != 1 or Size.VARYING in sizes:
        return Unknown(node_of(op))
    return Rows(sizes.index(Size.ROWS))


def _repeat(op: Any, states: Sequence[State]) -> State:
    """`Tile` and `BroadcastTo`: rows are kept, or a value is repeated for each row."""
    given, sizes = states[0], _numbers(states[1])
    shape, rank = op.inputs[0].shape, op.outputs[0].shape.rank
    if sizes is None or rank is None or shape.rank is None or len(sizes) != rank:
        return Unknown(node_of(op))
    if isinstance(given, Rows):
        axis = given.axis + rank - shape.rank
        kept = sizes[axis] == 1 if op.type == "Tile" else not isinstance(sizes[axis], int)
        others = (*sizes[:axis], *sizes[axis + 1 :])
        return Rows(axis, given.exact) if kept and not _vary(others) else Unknown(node_of(op))
    alone = shape.rank < rank or shape.as_list()[0] == 1
    if (
        isinstance(given, Plain)
        and not given.varies
        and sizes[0] is Size.ROWS
        and alone
        and not _vary(sizes[1:])
    ):
        return Rows(0)
    return Unknown(node_of(op))


def _list_from_tensor(op: Any, states: Sequence[State]) -> State:
    given = states[0]
    if isinstance(given, Rows) and given.axis:
        return Listed(Rows(given.axis - 1, given.exact))
    return Listed(Plain()) if isinstance(given, Plain) and not given.varies else Unknown(node_of(op))


def _empty_list(op: Any, states: Sequence[State]) -> State:
    size = states[1]
    return Listed() if isinstance(size, Plain) and not size.varies else Unknown(node_of(op))


def _list_set(op: Any, states: Sequence[State]) -> State:
    listed, index, item = states if op.type == "TensorListSetItem" else (states[0], Plain(), states[1])
    if not isinstance(listed, Listed) or not isinstance(index, Plain) or index.varies:
        return Unknown(node_of(op))
    return join(listed, Listed(item), node_of(op)) if isinstance(item, Plain | Rows) else Unknown(node_of(op))


def _list_get(op: Any, states: Sequence[State]) -> State:
    listed, index = states[0], states[1]
    known = isinstance(listed, Listed) and isinstance(index, Plain) and not index.varies
    return listed.item if known and isinstance(listed, Listed) and listed.item else Unknown(node_of(op))


def _list_stack(op: Any, states: Sequence[State]) -> State:
    listed = states[0]
    if isinstance(listed, Listed) and isinstance(listed.item, Rows):
        return Rows(listed.item.axis + 1, listed.item.exact)
    return listed.item if isinstance(listed, Listed) and listed.item else Unknown(node_of(op))


def _list_length(_: Any, __: Sequence[State]) -> State:
    return Plain()


LAYOUTS: Final[dict[str, Rule]] = {
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    **dict.fromkeys(("Split", "SplitV"), _split),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "ConcatV2": _concat,
    "Pack": _pack,
    "Unpack": _unpack,
}
"""Rules of operators on rows."""

MAKING: Final[dict[str, Rule]] = {
    **dict.fromkeys(("Tile", "BroadcastTo"), _repeat),
    **dict.fromkeys(("TensorListReserve", "EmptyTensorList"), _empty_list),
    **dict.fromkeys(("TensorListSetItem", "TensorListPushBack"), _list_set),
    "Fill": _fill,
    "TensorListFromTensor": _list_from_tensor,
    "TensorListGetItem": _list_get,
    "TensorListStack": _list_stack,
    "TensorListLength": _list_length,
}
"""Rules of operators that may make rows, or lists, from inputs that are the same for all rows."""
