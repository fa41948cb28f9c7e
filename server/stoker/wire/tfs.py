"""TensorFlow Serving's REST requests and answers: predict in row and column format.

Source: TensorFlow Serving's REST API text and, where that is silent, its code. Sans-I/O.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
from msgspec import Struct

from stoker.errors import InvalidInput, MalformedBody, cut, json_beginning, quoted
from stoker.settings.choices import WORDS, NonFinite
from stoker.tensors import ModelTensors, NamedSignature, TensorInfo
from stoker.wire.json_bodies import check_slow, check_values, dump, finite, load, nests_deeper
from stoker.wire.nested_lists import Elements, RaggedLists, elements_of, fits_kind, numbers
from stoker.wire.packed import MISSING
from stoker.wire.tables import columns_of_rows, is_columns
from stoker.wire.tensor_json import as_dtype, check_rows, from_base64, is_base64, is_missing, named_columns

_MAX_DEPTH: Final = 100


class PredictRequest(Struct, frozen=True):
    """A decoded predict request.

    Attributes:
        inputs: Arrays by name, of the model's dtypes; strings are `object` arrays of `bytes`.
        rows: Whether the request, and so the answer, is in row format.
        sent_axes: The number of axes of inputs that all leave out their last axes of size 1; None for others.
    """

    signature: NamedSignature
    inputs: dict[str, np.ndarray]
    rows: bool
    sent_axes: int | None = None


def decode_predict(signatures: Sequence[NamedSignature], body: bytes) -> PredictRequest:
    """Decode `{"instances": [...]}` (rows) or `{"inputs": ...}` (columns); the first signature is the default."""
    document = read_document(body)
    signature = named_signature(signatures, document)
    tensors = signature.tensors
    if ("instances" in document) == ("inputs" in document):
        raise MalformedBody(
            "Request has both 'instances' and 'inputs'; give one of the two"
            if "inputs" in document
            else "Missing 'inputs' or 'instances' key"
        )
    if "instances" in document:
        arrays = _from_rows(tensors, document["instances"])
    else:
        arrays = _from_columns(tensors, document["inputs"])
    arrays, sent_axes = complete_axes(arrays, tensors)
    check_rows(arrays, tensors)
    return PredictRequest(signature, arrays, "instances" in document, sent_axes)


def complete_axes(
    arrays: dict[str, np.ndarray], tensors: ModelTensors
) -> tuple[dict[str, np.ndarray], int | None]:
    """Return inputs in their declared shapes, and the axes that were sent, if all inputs leave out some of size 1.

    TensorFlow Serving hands a graph any shape: `[1.0, 2.0]` for an input `[?,1]`. Where a graph can take that, for it
    works element by element, its outputs have the axes that were sent.
    """
    infos = tensors.inputs
    if all(info.any_rank or arrays[info.name].ndim == len(info.shape) for info in infos):
        return arrays, None
    whole = {}
    for info in infos:
        shape = info.completed(arrays[info.name].shape)
        assert shape is not None, "its shape was checked"
        whole[info.name] = arrays[info.name].reshape(shape)
    axes = {array.ndim for array in arrays.values()}
    all_lack = all(arrays[name].ndim < array.ndim for name, array in whole.items())
    return whole, axes.pop() if all_lack and len(axes) == 1 else None


def as_sent(info: TensorInfo, array: np.ndarray, sent_axes: int | None) -> np.ndarray:
    """Return an output without the axes of size 1 that its request has left out."""
    if sent_axes is None or array.ndim <= sent_axes or array.ndim != len(info.shape):
        return array
    declared = info.shape[max(1, sent_axes) :]
    if any(size != 1 for size in (*declared, *array.shape[sent_axes:])):
        return array
    return array.reshape(array.shape[:sent_axes])


def read_document(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request."""
    if not body:
        raise MalformedBody("JSON Parse error: The document is empty")
    if nests_deeper(body, _MAX_DEPTH):
        raise MalformedBody(f"JSON Parse error: nested more than {_MAX_DEPTH} levels deep")
    check_values(body)
    try:
        document = load(body)
    except orjson.JSONDecodeError:
        document = _first_value(body)
    if not isinstance(document, dict):
        raise MalformedBody("JSON Value: the request is not an object")
    return document


def named_signature(signatures: Sequence[NamedSignature], document: Mapping[str, Any]) -> NamedSignature:
    """Return the signature that a request names, the first one if it names none."""
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise MalformedBody("'signature_name' key must be a string value.")
    if not name:
        return signatures[0]
    for signature in signatures:
        if signature.name == name:
            return signature
    served = ", ".join(signature.name for signature in signatures)
    raise InvalidInput(
        f'Serving signature name: "{cut(name)}" not found in signature def; served here: {served}'
    )


def _first_value(body: bytes) -> Any:
    """Parse the first JSON value with NaN and Infinity; ignore the rest, as TensorFlow Serving does."""
    check_slow(body)
    try:
        value, _ = json.JSONDecoder(parse_float=finite).raw_decode(body.decode().lstrip(" \t\r\n\ufeff"))
    except (ValueError, RecursionError) as error:
        position = getattr(error, "pos", 0)
        raise MalformedBody(f"JSON Parse error: Invalid value. at offset: {position}") from None
    return value


def _from_rows(tensors: ModelTensors, instances: Any) -> dict[str, np.ndarray]:
    if not isinstance(instances, list):
        raise MalformedBody("'instances' must be an array")
    if not instances:
        raise InvalidInput("No values in 'instances' array")
    infos = tensors.inputs
    for info in infos:
        if not info.shape and not info.any_rank:
            raise InvalidInput(f"{info} is one value for all rows; ask in column format ('inputs')")
    if is_columns(infos):
        columns = columns_of_rows(instances, tensors)
        return {info.name: tensor_of(columns[info.name], info) for info in infos}
    if len(infos) == 1 and not (_is_named(instances[0], infos)):
        return {infos[0].name: tensor_of(instances, infos[0])}
    names = [info.name for info in infos]
    wanted = set(names)
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or instance.keys() != wanted:
            raise InvalidInput(
                f"'instances' must be objects with the keys {', '.join(names)}; item {index} is not one"
            )
    return {info.name: tensor_of([instance[info.name] for instance in instances], info) for info in infos}


def _is_named(instance: Any, infos: Sequence[TensorInfo]) -> bool:
    return isinstance(instance, dict) and not (is_base64(instance) and infos[0].dtype == "string")


def _from_columns(tensors: ModelTensors, inputs: Any) -> dict[str, np.ndarray]:
    infos = tensors.inputs
    if is_columns(infos):
        inputs = columns_of_rows(inputs, tensors)
    if len(infos) == 1 and not _is_named(inputs, infos):
        return {infos[0].name: tensor_of(inputs, infos[0])}
    if not isinstance(inputs, dict):
        raise InvalidInput(f"'inputs' must be an object with the inputs {', '.join(i.name for i in infos)}")
    missing = [info.name for info in infos if info.name not in inputs]
    if missing:
        raise InvalidInput(f"Missing named input: {', '.join(missing)}")
    if len(inputs) > len(infos):
        known = {info.name for info in infos}
        unknown = next(name for name in inputs if name not in known)
        raise InvalidInput(
            f"Unknown named input: {quoted(unknown)}; the inputs are {', '.join(i.name for i in infos)}"
        )
    return {info.name: tensor_of(inputs[info.name], info) for info in infos}


def tensor_of(value: Any, info: TensorInfo) -> np.ndarray:
    """Return nested lists as an array of the declared dtype, shaped as sent; see `complete_axes`.

    Strings become `object` arrays of `bytes`.
    """
    try:
        elements = elements_of(value)
    except RaggedLists as ragged:
        problem = f"Encountered list at unexpected size: {ragged.size} at level: {ragged.level}"
        if ragged.expected is not None:
            problem += f" expected size: {ragged.expected}"
        raise InvalidInput(problem) from None
    # Before reshaping: lists can be nested deeper than arrays.
    if info.completed(elements.shape) is None:
        raise InvalidInput(f"Expected {info}, got the shape {list(elements.shape)}")
    array = _strings(elements.items, info) if info.dtype == "string" else _numbers(elements, info)
    return array.reshape(elements.shape)


def _numbers(elements: Elements, info: TensorInfo) -> np.ndarray:
    kind = info.kind
    try:
        return as_dtype(numbers(elements, kind, nullable=info.nullable), info)
    except TypeError:
        others = (i for i in elements.items if not fits_kind(i, kind) and not is_missing(i, info))
        other = next(i for i in others if not (info.nullable and isinstance(i, bool)) or kind != "f")
        raise InvalidInput(
            f"JSON Value: {json_beginning(other)} Type: {_type(other)} is not of expected type: {info.dtype}"
        ) from None
    except OverflowError:
        raise InvalidInput(f"a number of {info.name} does not fit {info.dtype}") from None


def _strings(leaves: list[Any], info: TensorInfo) -> np.ndarray:
    array = np.empty(len(leaves), object)
    array[:] = [MISSING if is_missing(leaf, info) else string_of(leaf, info.name) for leaf in leaves]
    return array


def string_of(leaf: Any, name: str) -> bytes:
    """Return the bytes of a string or of `{"b64": ...}`; raise InvalidInput, with `name`, for anything else."""
    if isinstance(leaf, str):
        return leaf.encode(errors="surrogatepass")
    if is_base64(leaf):
        return from_base64(leaf["b64"], name)
    raise InvalidInput(
        f"JSON Value: {json_beginning(leaf)} Type: {_type(leaf)} is not of expected type: string"
    )


def _type(value: Any) -> str:
    match value:
        case None:
            return "Null"
        case bool():
            return "True" if value else "False"
        case str():
            return "String"
        case int() | float():
            return "Number"
        case _:
            return "Object" if isinstance(value, dict) else "Array"


def encode_predict(
    request: PredictRequest,
    outputs: Mapping[str, np.ndarray],
    non_finite: NonFinite = WORDS,
    *,
    key: str | None = None,
) -> bytes:
    """Encode an answer in the format of its request.

    Args:
        key: The only key of the answer; empty for an answer without one, None for the key of the format.
    """
    infos = request.signature.tensors.outputs
    names = [info.name for info in infos]
    if request.sent_axes is not None:
        outputs = {info.name: as_sent(info, outputs[info.name], request.sent_axes) for info in infos}
    if not request.rows:
        columns = {info.name: _lists(info, outputs[info.name]) for info in infos}
        value = columns[names[0]] if len(names) == 1 else columns
        return _keyed("outputs" if key is None else key, value, non_finite)
    sizes = {outputs[name].shape[0] if outputs[name].ndim else -1 for name in names}
    if len(sizes) > 1 or -1 in sizes:
        raise InvalidInput("The outputs have no common batch dimension; ask in column format ('inputs')")
    key = "predictions" if key is None else key
    if len(names) == 1:
        return _keyed(key, _lists(infos[0], outputs[names[0]]), non_finite)
    listed = [_lists(info, outputs[info.name]) for info in infos]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*listed, strict=True)]
    return _keyed(key, rows, non_finite)


def _keyed(key: str, value: Any, non_finite: NonFinite) -> bytes:
    return dump({key: value} if key else value, non_finite)


def _lists(info: TensorInfo, array: np.ndarray) -> Any:
    if info.as_objects:
        return named_columns(array, info.labels)
    if array.dtype == object:
        return _string_lists(array.tolist(), encoded=info.name.endswith("_bytes"))
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _string_lists(value: Any, *, encoded: bool) -> Any:
    if isinstance(value, list):
        return [_string_lists(item, encoded=encoded) for item in value]
    return {"b64": base64.b64encode(value).decode()} if encoded else value.decode(errors="replace")
