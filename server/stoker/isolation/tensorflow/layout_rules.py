"""Rules of TensorFlow's operators that move axes, make tensors of a shape, or use lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from stoker.isolation.tensorflow.operator_call import Call, Rule
from stoker.isolation.tensorflow.row_states import Listed, Plain, Rows, Size, State, join, node_of


def _vary(sizes: Sequence[Any]) -> bool:
    return any(size in (Size.ROWS, Size.VARYING) for size in sizes)


def _reshape(call: Call) -> State:
    """Rows are contiguous, each of equally many elements; they stay apart in a shape that splits no row."""
    given, sizes, static = call.first_rows(), call.plain(1).numbers, call.op.outputs[0].shape
    if sizes is None and static.rank is not None:
        sizes = tuple(Size.VARYING if size is None else size for size in static.as_list())
    elif sizes is not None and static.rank == len(sizes):
        known = static.as_list()
        sizes = tuple(k if size is Size.FIXED and k else size for k, size in zip(known, sizes, strict=True))
    first, *others = sizes or call.undecided()
    if _vary(others):
        call.undecided()
    if first is Size.ROWS:
        return Rows(0)
    if first != -1 and isinstance(first, int):
        call.undecided()
    if not all(isinstance(size, int) and size > 0 for size in others):
        call.undecided()
    inner, whole = _known_elements(call.op.inputs[0])
    elements = math.prod(others)
    if inner % elements:
        call.undecided()
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


def _transpose(call: Call) -> State:
    given, order = call.rows(), call.numbers(1)
    return Rows(order.index(given.axis), given.exact) if given.axis in order else call.undecided()


def _expand_dims(call: Call) -> State:
    given = call.rows()
    return Rows(given.axis + (call.integer(1) % (call.rank() + 1) <= given.axis), given.exact)


def _squeeze(call: Call) -> State:
    given, rank = call.rows(), call.rank()
    axes = {axis % rank for axis in call.op.get_attr("squeeze_dims")}
    # Without named axes, a batch axis of size 1 would be dropped too.
    if not axes or given.axis in axes:
        call.undecided()
    return Rows(given.axis - sum(axis < given.axis for axis in axes), given.exact)


def _strided_slice(call: Call) -> State:
    call.check_others_fixed()
    given, rank, op = call.rows(), call.rank(), call.op
    count = op.inputs[1].shape.num_elements()
    if count is None:
        call.undecided()
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
            return Rows(out, given.exact) if _is_whole(call, masks, index) else call.undecided()
        else:
            taken, out = taken + 1, out + (not masks["shrink_axis"] & bit)
    return Rows(out + given.axis - taken, given.exact)


def _is_whole(call: Call, masks: dict[str, int], index: int) -> bool:
    """Whether a slice takes a whole axis in order."""
    begin, stride = call.plain(1).numbers, call.plain(3).numbers
    bit = 1 << index
    first = bool(masks["begin"] & bit) or (begin is not None and begin[index] == 0)
    forwards = stride is not None and stride[index] == 1
    return first and forwards and bool(masks["end"] & bit) and not masks["shrink_axis"] & bit


def _slice(call: Call) -> State:
    given, begin, size = call.rows(), call.numbers(1), call.numbers(2)
    whole = begin[given.axis] == 0 and size[given.axis] in (-1, Size.ROWS if given.exact else -1)
    others = [item for axis, item in enumerate(size) if axis != given.axis]
    return given if whole and not _vary(begin) and not _vary(others) else call.undecided()


def _pad(call: Call) -> State:
    call.check_others_fixed()
    given, padding = call.rows(), call.fixed(1).value
    return given if padding is not None and padding[given.axis] == (0, 0) else call.undecided()


def _concat(call: Call) -> State:
    parts = len(call.states) - 1
    # All parts have equal sizes along the batch axis: a part without rows would differ for each row.
    rows = {call.rows(index) for index in range(parts)}
    if len(rows) != 1 or call.integer(parts) % call.output_rank == call.rows().axis:
        call.undecided()
    return call.rows()


def _pack(call: Call) -> State:
    given = call.rows()
    if any(state != given for state in call.states):
        call.undecided()
    return Rows(given.axis + (call.op.get_attr("axis") % call.output_rank <= given.axis), given.exact)


def _unpack(call: Call) -> State:
    given = call.rows()
    axis = call.op.get_attr("axis") % call.rank()
    return call.undecided() if axis == given.axis else Rows(given.axis - (axis < given.axis), given.exact)


def _split(call: Call) -> State:
    axis, place = (0, 1) if call.op.type == "Split" else (2, 0)
    if call.op.type != "Split":
        call.fixed(1)
    given = call.rows(place)
    return call.undecided() if call.integer(axis) % call.output_rank == given.axis else given


def _fill(call: Call) -> State:
    sizes = call.numbers(0)
    call.fixed(1)
    if sizes.count(Size.ROWS) != 1 or Size.VARYING in sizes:
        call.undecided()
    return Rows(sizes.index(Size.ROWS))


def _repeat(call: Call) -> State:
    """`Tile` and `BroadcastTo`: rows are kept, or a value is repeated for each row."""
    given, sizes = call.states[0], call.numbers(1)
    own_rank, rank = call.rank(), call.output_rank
    if len(sizes) != rank:
        call.undecided()
    if isinstance(given, Rows):
        axis = given.axis + rank - own_rank
        kept = sizes[axis] == 1 if call.op.type == "Tile" else not isinstance(sizes[axis], int)
        others = (*sizes[:axis], *sizes[axis + 1 :])
        return Rows(axis, given.exact) if kept and not _vary(others) else call.undecided()
    call.fixed(0)
    alone = own_rank < rank or call.op.inputs[0].shape.as_list()[0] == 1
    return Rows(0) if alone and sizes[0] is Size.ROWS and not _vary(sizes[1:]) else call.undecided()


def _list_from_tensor(call: Call) -> State:
    given = call.states[0]
    if isinstance(given, Rows) and given.axis:
        return Listed(Rows(given.axis - 1, given.exact))
    call.fixed(0)
    return Listed(Plain())


def _empty_list(call: Call) -> State:
    call.fixed(1)
    return Listed()


def _list_set(call: Call) -> State:
    listed, item = call.states[0], call.states[-1]
    if call.op.type == "TensorListSetItem":
        call.fixed(1)
    if not isinstance(listed, Listed) or not isinstance(item, Plain | Rows):
        call.undecided()
    return join(listed, Listed(item), node_of(call.op))


def _item_of_list(call: Call) -> Plain | Rows:
    listed = call.states[0]
    return (listed.item if isinstance(listed, Listed) else None) or call.undecided()


def _list_get(call: Call) -> State:
    call.fixed(1)
    return _item_of_list(call)


def _list_stack(call: Call) -> State:
    item = _item_of_list(call)
    return Rows(item.axis + 1, item.exact) if isinstance(item, Rows) else item


def _list_length(_: Call) -> State:
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
