"""Ranges of a PyTorch model's integers: on a GPU an index out of range breaks CUDA for the whole process.

On the CPU PyTorch raises IndexError for an index that is out of range. On a GPU the kernel asserts instead, and from
then on every call of the process fails. So the load finds the range of each input of integers without such an index
on the GPU, and requests beyond it are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput
from stoker.runtimes.packed import Feeds, Run
from stoker.tensors import TensorInfo

Limits = Mapping[str, tuple[int, int]]
"""The smallest and the largest number that an input takes, by name; inputs without a known range are absent."""

_PLACES: Final = {
    "aten::embedding": (0, 1, None),
    "aten::_embedding_bag": (0, 1, None),
    "aten::_embedding_bag_forward_only": (0, 1, None),
    "aten::index_select": (0, 2, 1),
    "aten::gather": (0, 2, 1),
    "aten::scatter": (0, 2, 1),
    "aten::scatter_": (0, 2, 1),
    "aten::scatter_add": (0, 2, 1),
    "aten::scatter_add_": (0, 2, 1),
    "aten::index_add": (0, 2, 1),
    "aten::index_copy": (0, 2, 1),
}
"""Operators with indices: the places of the table, of the indices, and of the axis, which is 0 without a place."""
_LISTS: Final = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operators with a list of indices, one for each axis, which may count from the end."""


def checked_indices(torch: Any) -> Any:
    """Return a context in which PyTorch raises IndexError for an index out of range, on any device.

    It waits for the device at each operator with indices, so it is for the load.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class CheckedIndices(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not installed where types are checked
        def __torch_dispatch__(
            self, operator: Any, types: Any, arguments: Sequence[Any] = (), named: Any = None
        ) -> Any:
            name = operator._schema.name  # noqa: SLF001  # an operator has no public name
            if name in _LISTS:
                _check_list(torch, *arguments[:2])
            elif name in _PLACES:
                _check_axis(*(None if place is None else arguments[place] for place in _PLACES[name]))
            return operator(*arguments, **(named or {}))

    return CheckedIndices()


def _check_list(torch: Any, table: Any, lists: Sequence[Any]) -> None:
    for axis, indices in enumerate(lists):
        # Masks are no indices.
        if indices is not None and indices.dtype not in (torch.bool, torch.uint8):
            _check_range(indices, -table.shape[axis], table.shape[axis])


def _check_axis(table: Any, indices: Any, axis: int | None) -> None:
    if table.ndim:
        _check_range(indices, 0, table.shape[axis or 0])


def _check_range(indices: Any, least: int, end: int) -> None:
    if indices.numel() and not (least <= int(indices.min()) and int(indices.max()) < end):
        raise IndexError(f"an index is out of range: the table has {end}")


def find_limits(run: Run, inputs: Sequence[TensorInfo], request: Feeds) -> dict[str, tuple[int, int]]:
    """Find the range of each input of integers by trying numbers, each in all places of the input.

    Args:
        run: The model, which raises InvalidInput for numbers that it does not take.
        request: A request that it answers.
    """
    limits = {}
    for info in inputs:
        array, dtype = request[info.name], np.dtype(info.dtype)
        if dtype.kind not in "iu" or not array.size:
            continue
        ends = np.iinfo(dtype)
        takes = partial(_takes, run, request, info.name)
        known = int(array.max())
        if takes(known):
            limits[info.name] = (
                _find_end(takes, known, int(ends.min)),
                _find_end(takes, known, int(ends.max)),
            )
    return limits


def _takes(run: Run, request: Feeds, name: str, number: int) -> bool:
    try:
        run({**request, name: np.full_like(request[name], number)})
    except InvalidInput:
        return False
    return True


def _find_end(takes: Callable[[int], bool], accepted: int, end: int) -> int:
    """Return the last accepted number towards `end`, if acceptance changes only once on the way."""
    if takes(end):
        return end
    refused, step = end, 1
    # Tables are short compared with the range of the dtype, so steps begin small.
    while step < abs(refused - accepted):
        number = accepted + step if end > accepted else accepted - step
        if not takes(number):
            refused = number
            break
        accepted, step = number, 2 * step
    while abs(refused - accepted) > 1:
        number = (accepted + refused) // 2
        if takes(number):
            accepted = number
        else:
            refused = number
    return accepted


def check_limits(feeds: Feeds, limits: Limits) -> None:
    """Raise InvalidInput for a number that is out of range."""
    for name, (least, most) in limits.items():
        array = feeds[name]
        if array.size and not (least <= array.min() and array.max() <= most):
            raise InvalidInput.refused_by_model(f"numbers of {name} have to be from {least} to {most}")
