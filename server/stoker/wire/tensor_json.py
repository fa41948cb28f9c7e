"""JSON of models whose requests are whole tensors: `{"data": tensor}` or `{"data": {name: tensor, ...}}`.

The shapes come from the lists themselves; what the model declares is checked against them.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from stoker.echo import quoted_names
from stoker.errors import InvalidInput
from stoker.non_finite import WORDS, NonFinite
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.input_data import columns_of_rows, data_of, is_columns, named_rows
from stoker.wire.json_bodies import kind_of, parse_document
from stoker.wire.nested_lists import Elements, RaggedLists, elements_of, numbers
from stoker.wire.non_finite import rewritten
from stoker.wire.packed import MISSING

__all__ = [
    "as_dtype",
    "as_tensor",
    "check_rows",
    "decode_tensors",
    "encode_tensors",
    "from_base64",
    "is_base64",
    "is_missing",
    "tensors_of",
    "to_lists",
    "writable",
]

_WORDS: Final = {"b": "booleans", "i": "integers", "u": "non-negative integers", "f": "numbers"}


def decode_tensors(body: bytes, tensors: ModelTensors) -> dict[str, np.ndarray]:
    """Return the inputs by name, with the model's dtypes; bytes may be `{"b64": "..."}` in place of a string.

    Raises:
        MalformedBody: The body is not JSON.
        InvalidInput: It has no `data`, inputs are missing or unknown, or one has the wrong shape or type.
    """
    return tensors_of(parse_document(body), tensors)


def tensors_of(document: Any, tensors: ModelTensors) -> dict[str, np.ndarray]:
    """`decode_tensors` for a body that has been parsed; raises InvalidInput."""
    if not isinstance(document, dict) or ("data" not in document and "input_data" not in document):
        raise InvalidInput(
            'The key "data" is missing; expected {"data": tensor} or {"data": {"name": tensor}}.'
        )
    names = [info.name for info in tensors.inputs]
    data = document["data"] if "data" in document else data_of(document, tensors.inputs)
    if is_columns(tensors.inputs):
        data = columns_of_rows(data, tensors)
    data = named_rows(data, tensors.inputs)
    if len(names) == 1 and not isinstance(data, dict):
        data = {names[0]: data}
    if not isinstance(data, dict) or set(data) != set(names):
        came = quoted_names(data) if isinstance(data, dict) else kind_of(data)
        raise InvalidInput(f'"data" must be an object with the inputs {", ".join(names)}; got {came}.')
    arrays = {info.name: as_tensor(data[info.name], info, encoded=True) for info in tensors.inputs}
    check_rows(arrays, tensors)
    return arrays


def check_rows(arrays: Mapping[str, np.ndarray], tensors: ModelTensors) -> None:
    """Raise InvalidInput unless all inputs of a model with a batch axis have one number of rows, 1 at least."""
    if not tensors.batched:
        return
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise InvalidInput.different_rows(counts.items())
    if not all(counts.values()):
        raise InvalidInput("The request holds no rows.")


def as_tensor(value: Any, info: TensorInfo, *, encoded: bool = False) -> np.ndarray:
    """Return nested lists as an array of the declared dtype and shape; strings become `object` arrays of `bytes`.

    Args:
        value: The lists, or an element that stands alone.
        info: What is declared.
        encoded: Whether `{"b64": "..."}` may stand where a string does.

    Raises:
        InvalidInput: The lists are ragged, of another shape, or hold something else.
    """
    try:
        elements = elements_of(value)
    except RaggedLists:
        raise InvalidInput(f"{info.name}: the lists are ragged; expected {info}.") from None
    # First: lists can be nested deeper than arrays.
    if not info.fits(elements.shape):
        raise InvalidInput(f"Expected {info}, got the shape {list(elements.shape)}.")
    array = _strings(elements, info, encoded=encoded) if info.dtype == "string" else _numbers(elements, info)
    return array.reshape(elements.shape)


def _numbers(elements: Elements, info: TensorInfo) -> np.ndarray:
    kind = np.dtype(info.dtype).kind
    try:
        return as_dtype(numbers(elements, kind, nullable=info.nullable), info)
    except TypeError:
        raise InvalidInput(f"{info.name}: expected {_WORDS[kind]} as {info}, got something else.") from None
    except OverflowError:
        raise InvalidInput(f"{info.name}: a number does not fit {info.dtype}.") from None


def as_dtype(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Cast numbers to the declared dtype.

    Raises:
        InvalidInput: A number does not fit it.
    """
    dtype = np.dtype(info.dtype)
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InvalidInput(f"{info.name}: a number does not fit {info.dtype}.")
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype, copy=False)
    except FloatingPointError:
        raise InvalidInput(f"{info.name}: a number is too large for {info.dtype}.") from None


def _strings(elements: Elements, info: TensorInfo, *, encoded: bool) -> np.ndarray:
    array = np.empty(len(elements.items), object)
    if elements.types <= {str}:
        array[:] = list(map(str.encode, elements.items))
        return array
    for item in elements.items:
        if not isinstance(item, str) and not (encoded and is_base64(item)) and not is_missing(item, info):
            raise InvalidInput(f"{info.name}: expected strings as {info}, got {kind_of(item)}.")
    array[:] = [
        item.encode()
        if isinstance(item, str)
        else MISSING
        if item is None
        else from_base64(item["b64"], info.name)
        for item in elements.items
    ]
    return array


def is_missing(item: Any, info: TensorInfo) -> bool:
    """Whether an element is null, and that stands for a missing value; there is none among booleans."""
    return item is None and info.nullable and info.dtype.startswith(("string", "float"))


def is_base64(value: Any) -> bool:
    """Whether a JSON value is `{"b64": "..."}`, which TensorFlow Serving writes for bytes."""
    return isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str)


def from_base64(text: str, name: str) -> bytes:
    """Return the bytes that a text of base64 stands for.

    Raises:
        InvalidInput: It is none; the message calls it `name`.
    """
    try:
        # Other than by base64, without a copy of the text.
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"Unable to base64 decode a value of {name}") from None


def encode_tensors(outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
    """Return the only output as lists, or an object of outputs by name; see `encode_outputs` for NaN."""
    listed: Any = {name: writable(array) for name, array in outputs.items()}
    if len(outputs) == 1:
        (listed,) = listed.values()
    text = orjson.dumps(listed, default=to_lists, option=orjson.OPT_SERIALIZE_NUMPY)
    return rewritten(text, listed, to_lists, non_finite) if b"null" in text else text


def writable(array: np.ndarray) -> Any:
    """What orjson writes, which takes only arrays of numbers that have axes."""
    return to_lists(array) if array.dtype == object or not array.ndim else array


def to_lists(array: Any) -> Any:
    """Nested lists of an array's elements; strings that are not UTF-8 get replacement characters."""
    if not isinstance(array, np.ndarray):
        raise TypeError(type(array).__name__)
    return _texts(array.tolist()) if array.dtype == object else array.tolist()


def _texts(value: Any) -> Any:
    return [_texts(item) for item in value] if isinstance(value, list) else value.decode(errors="replace")
