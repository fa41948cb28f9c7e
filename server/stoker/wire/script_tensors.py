"""Entry scripts that yield, as models with tensors: a request's tensors become a body, and pieces become tensors.

Such a script has no tensors of its own: `raw_data` is a whole body, and `piece` is the JSON of a piece. Callers of
servers whose models declare tensors use other names: inputs with other names become the members of a JSON object, and
an output with another name is that member of each piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody
from stoker.tensors import ModelTensors, TensorInfo

_BODY_INPUT: Final = "raw_data"
PIECE_OUTPUT: Final = "piece"
PIECE_TENSORS: Final = ModelTensors(
    (TensorInfo(_BODY_INPUT, "string", (1,)),), (TensorInfo(PIECE_OUTPUT, "string", (1,)),), batched=False
)
"""The declared inputs and outputs of a script that yields."""

_MAX_ELEMENTS: Final = 1 << 16
"""A limit, because each element of a member becomes a Python object and then a text."""


def tensors_like(
    inputs: Iterable[tuple[str, str]], outputs: Iterable[str], *, sequences: bool = False
) -> ModelTensors:
    """Return tensors of any shape for a request's inputs (names, dtypes) and outputs; no outputs mean `piece`."""
    wanted = tuple(TensorInfo(name, "string", (), any_rank=True) for name in outputs)
    return ModelTensors(
        tuple(TensorInfo(name, dtype, (), any_rank=True) for name, dtype in inputs),
        wanted or PIECE_TENSORS.outputs,
        batched=False,
        sequences=sequences,
    )


def body_of(model: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Return the body that a script gets for a request's tensors by name; strings are `object` arrays of `bytes`."""
    body = inputs.get(_BODY_INPUT)
    if body is not None:
        if len(inputs) > 1:
            raise InvalidInput(f"'{_BODY_INPUT}' is the whole body for model '{model}': send no other input")
        if body.dtype != object or body.size != 1:
            raise InvalidInput(f"'{_BODY_INPUT}' of model '{model}' has to be one BYTES element, the body")
        content: bytes = body.item()
        return content
    if sum(array.size for array in inputs.values()) > _MAX_ELEMENTS:
        raise BodyTooLarge(
            f"the inputs for model '{model}' have more than {_MAX_ELEMENTS} elements: "
            f"send the body as '{_BODY_INPUT}'"
        )
    try:
        return json.dumps({name: _value(array) for name, array in inputs.items()}).encode()
    except UnicodeDecodeError:
        raise MalformedBody(f"a text among the inputs for model '{model}' is not UTF-8") from None


def _value(array: np.ndarray) -> Any:
    """Return a single element as it is, others as lists."""
    listed = array.item() if array.size == 1 else array.tolist()
    return _texts(listed) if array.dtype == object else listed


def _texts(value: Any) -> Any:
    return [_texts(item) for item in value] if isinstance(value, list) else value.decode()


def outputs_of(piece: bytes, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the requested outputs of a piece's JSON by name; members that it does not have are left out.

    Strings are BYTES, integers INT64, other numbers FP64, booleans BOOL, and lists of one of these have one axis
    more; any other member is its JSON text.
    """
    outputs, members = {}, None
    for name in names:
        if name == PIECE_OUTPUT:
            outputs[name] = _text(piece)
            continue
        if members is None:
            members = json.loads(piece)
        if isinstance(members, dict) and name in members:
            outputs[name] = _array(members[name])
    return outputs


def _array(value: Any) -> np.ndarray:
    items = value if isinstance(value, list) and value else [value]
    (kind, *others) = {type(item) for item in items}
    if not others and kind is str:
        array = np.empty(len(items), object)
        array[:] = [item.encode(errors="replace") for item in items]
        return array
    if not others and kind in (bool, float):
        return np.array(items, kind)
    if not others and kind is int and all(-(1 << 63) <= item < 1 << 63 for item in items):
        return np.array(items, np.int64)
    return _text(json.dumps(value).encode())


def _text(content: bytes) -> np.ndarray:
    array = np.empty(1, object)
    array[0] = content
    return array
