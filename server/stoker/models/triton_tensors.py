"""Tensors in Triton's `config.pbtxt` as declarations."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stoker.deployment import DeclaredTensor
from stoker.models.pbtxt_fields import Fields, InvalidField
from stoker.system.durable import read_regular
from stoker.wire.datatypes import TRITON_DTYPES

_MOST_ELEMENTS: Final = (1 << 31) - 1
_REFUSED_OF_TENSORS: Final = {
    "is_shape_tensor": "shape tensors are TensorRT's: serve the ONNX file",
    "is_non_linear_format_io": "such formats are TensorRT's: serve the ONNX file",
    "allow_ragged_batch": "pad fills up free sizes, so that requests of different sizes share a batch",
    "optional": "export the model with the default value, or without the input",
}
_MOST_LABEL_BYTES: Final = 1 << 20
_MOST_LABEL_CHARACTERS: Final = 256


def read_tensor(
    fields: Fields, pass_over: Callable[[str], None], base: Path, *, batched: bool, is_python: bool = False
) -> DeclaredTensor:
    """Read a tensor.

    Args:
        pass_over: Called with each field that has no effect.
        batched: Whether rows are its first axis, which is not in `dims`.
    """
    known = ("name", "data_type", "format", "dims", "reshape", "label_filename")
    fields.check_known(*known, *_REFUSED_OF_TENSORS)
    name, data_type = fields.text("name"), fields.identifier("data_type")
    if not name:
        raise InvalidField(f"{fields.place}name is missing")
    if data_type not in TRITON_DTYPES:
        dtypes = ", ".join(TRITON_DTYPES)
        raise InvalidField(f"{fields.place}data_type of {name} must be one of {dtypes}, not {data_type}")
    if not fields.has("dims"):
        raise InvalidField(f"{fields.place}dims of {name} are missing")
    for flag, instead in _REFUSED_OF_TENSORS.items():
        if fields.flag(flag) and not (is_python and flag == "optional"):
            raise InvalidField(f"{fields.place}{flag} of {name} is not offered: {instead}")
    if is_python and fields.has("reshape"):
        raise InvalidField(f"{fields.place}reshape of {name} is not offered: reshape it in execute")
    if fields.identifier("format") not in (None, "FORMAT_NONE"):
        pass_over(f"format of {name}")
    axis = (-1,) if batched else ()
    shape = fields.sizes("dims")
    if math.prod(size for size in shape if size > 0) > _MOST_ELEMENTS:
        raise InvalidField(f"{fields.place}dims of {name} hold more than {_MOST_ELEMENTS} elements")
    reshape = fields.message("reshape")
    model_shape = None if reshape is None else reshape.sizes("shape")
    if model_shape is not None and not _same_elements(shape, model_shape):
        raise InvalidField(
            f"{fields.place}reshape of {name}: {list(shape)} cannot become {list(model_shape)}"
        )
    reshaped = None if model_shape is None or model_shape == shape else (*axis, *model_shape)
    return DeclaredTensor(name, TRITON_DTYPES[data_type], (*axis, *shape), reshaped, _labels(fields, base))


def _labels(fields: Fields, base: Path) -> tuple[str, ...]:
    """Return the labels of an output: the lines of its `label_filename`."""
    name = fields.text("label_filename")
    if not name:
        return ()
    if name in (".", "..") or "/" in name:
        raise InvalidField(f"{fields.place}label_filename is {name!r}; it must be a name without a folder")
    try:
        text = read_regular(base / name, _MOST_LABEL_BYTES).decode("utf-8")
        labels = tuple(line.rstrip("\r") for line in text.split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(f"{fields.place}label_filename: {name} cannot be read: {error}") from None
    if max(map(len, labels)) > _MOST_LABEL_CHARACTERS:
        raise InvalidField(
            f"{fields.place}label_filename: a line of {name} has more than {_MOST_LABEL_CHARACTERS} characters"
        )
    return labels if labels[-1] else labels[:-1]


def _same_elements(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    if -1 in (*shape, *other):
        # Free sizes keep their order, so there have to be as many.
        fixed = [math.prod(size for size in sizes if size >= 0) for sizes in (shape, other)]
        return shape.count(-1) == other.count(-1) and fixed[0] == fixed[1]
    return math.prod(shape) == math.prod(other)
