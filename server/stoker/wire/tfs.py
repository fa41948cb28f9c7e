"""TensorFlow Serving's REST requests and answers: predict in row and column format, classify, regress.

Source: TensorFlow Serving's REST API text, and for what that leaves open what its code does. Sans-I/O.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.json_bodies import check_slow, check_values, finite, load, nesting_depth
from stoker.wire.nested_lists import Elements, RaggedLists, elements_of, fits_kind, numbers
from stoker.wire.tensor_json import as_dtype, check_rows, from_base64, is_base64

__all__ = ["PredictRequest", "decode_examples", "decode_predict", "encode_predict", "encode_results"]

SIGNATURE: Final = "serving_default"
_MAX_DEPTH: Final = 100
_MAX_REPEATED: Final = 1 << 20
_FEATURE_KINDS: Final[dict[type, str]] = {
    str: "bytes",
    dict: "bytes",
    int: "int",
    bool: "int",
    float: "float",
}


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A decoded predict request.

    Attributes:
        inputs: Arrays by name, of the model's dtypes; strings are `object` arrays of `bytes`.
        rows: Whether it came in row format, and is to be answered so.
    """

    inputs: dict[str, np.ndarray]
    rows: bool


def decode_predict(tensors: ModelTensors, body: bytes) -> PredictRequest:
    """Decode `{"instances": [...]}` (row format) or `{"inputs": ...}` (column format).

    Raises:
        MalformedBody: The body is not JSON, or holds neither or both.
        InvalidInput: It does not fit the model.
    """
    document = _document(body)
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
    check_rows(arrays, tensors)
    return PredictRequest(arrays, "instances" in document)


def _document(body: bytes) -> dict[str, Any]:
    if not body:
        raise MalformedBody("JSON Parse error: The document is empty")
    if nesting_depth(body) > _MAX_DEPTH:
        raise MalformedBody(f"JSON Parse error: nested more than {_MAX_DEPTH} levels deep")
    check_values(body)
    try:
        document = load(body)
    except orjson.JSONDecodeError:
        document = _first_value(body)
    if not isinstance(document, dict):
        raise MalformedBody("JSON Value: the request is not an object")
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise MalformedBody("'signature_name' key must be a string value.")
    if name not in ("", SIGNATURE):
        raise InvalidInput(f'Serving signature name: "{name}" not found in signature def')
    return document


def _first_value(body: bytes) -> Any:
    """The first JSON value; what follows it is ignored, and NaN and Infinity are read, as TensorFlow Serving does."""
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
    if len(infos) == 1 and not (_is_named(instances[0], infos)):
        return {infos[0].name: _tensor(instances, infos[0])}
    names = [info.name for info in infos]
    wanted = set(names)
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or instance.keys() != wanted:
            raise InvalidInput(
                f"'instances' must be objects with the keys {', '.join(names)}; item {index} is not one"
            )
    return {info.name: _tensor([instance[info.name] for instance in instances], info) for info in infos}


def _is_named(instance: Any, infos: Sequence[TensorInfo]) -> bool:
    return isinstance(instance, dict) and not (is_base64(instance) and infos[0].dtype == "string")


def _from_columns(tensors: ModelTensors, inputs: Any) -> dict[str, np.ndarray]:
    infos = tensors.inputs
    if len(infos) == 1 and not _is_named(inputs, infos):
        return {infos[0].name: _tensor(inputs, infos[0])}
    if not isinstance(inputs, dict):
        raise InvalidInput(f"'inputs' must be an object with the inputs {', '.join(i.name for i in infos)}")
    missing = [info.name for info in infos if info.name not in inputs]
    if missing:
        raise InvalidInput(f"Missing named input: {', '.join(missing)}")
    if len(inputs) > len(infos):
        known = {info.name for info in infos}
        unknown = next(name for name in inputs if name not in known)
        raise InvalidInput(
            f"Unknown named input: {unknown!r}; the inputs are {', '.join(i.name for i in infos)}"
        )
    return {info.name: _tensor(inputs[info.name], info) for info in infos}


def _tensor(value: Any, info: TensorInfo) -> np.ndarray:
    try:
        elements = elements_of(value)
    except RaggedLists as ragged:
        problem = f"Encountered list at unexpected size: {ragged.size} at level: {ragged.level}"
        if ragged.expected is not None:
            problem += f" expected size: {ragged.expected}"
        raise InvalidInput(problem) from None
    # First: lists can be nested deeper than arrays.
    if not info.fits(elements.shape):
        raise InvalidInput(f"Expected {info}, got the shape {list(elements.shape)}")
    array = _strings(elements.items, info) if info.dtype == "string" else _numbers(elements, info)
    return array.reshape(elements.shape)


def _numbers(elements: Elements, info: TensorInfo) -> np.ndarray:
    kind = np.dtype(info.dtype).kind
    try:
        return as_dtype(numbers(elements, kind), info)
    except TypeError:
        other = next(item for item in elements.items if not fits_kind(item, kind))
        raise InvalidInput(
            f"JSON Value: {json.dumps(other)[:100]} Type: {_type(other)} is not of expected type: {info.dtype}"
        ) from None
    except OverflowError:
        raise InvalidInput(f"a number of {info.name} does not fit {info.dtype}") from None


def _strings(leaves: list[Any], info: TensorInfo) -> np.ndarray:
    array = np.empty(len(leaves), object)
    array[:] = [_bytes(leaf, info) for leaf in leaves]
    return array


def _bytes(leaf: Any, info: TensorInfo) -> bytes:
    if isinstance(leaf, str):
        return leaf.encode(errors="surrogatepass")
    if is_base64(leaf):
        return from_base64(leaf["b64"], info)
    raise InvalidInput(
        f"JSON Value: {json.dumps(leaf)[:100]} Type: {_type(leaf)} is not of expected type: string"
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


def decode_examples(tensors: ModelTensors, body: bytes) -> dict[str, np.ndarray]:
    """Decode `{"context": {...}, "examples": [{feature: value}, ...]}`: one feature for each input of the model.

    Raises:
        MalformedBody: The body is not JSON, or has no examples.
        InvalidInput: The features do not fit the model.
        BodyTooLarge: The context would become very large, which is repeated for each example.
    """
    document = _document(body)
    examples, context = document.get("examples"), document.get("context", {})
    if not isinstance(examples, list) or not examples:
        raise MalformedBody("'examples' must be a non-empty array of objects")
    if not isinstance(context, dict) or not all(isinstance(example, dict) for example in examples):
        raise MalformedBody("'context' and each of 'examples' must be an object of features")
    _check_names([info.name for info in tensors.inputs], context, examples)
    if sum(map(_size, context.values())) * len(examples) > _MAX_REPEATED:
        raise BodyTooLarge(
            f"The context, repeated for each example, holds more than {_MAX_REPEATED} values or letters; send the "
            "examples in parts, or without a context."
        )
    return {info.name: _feature(info, context, examples) for info in tensors.inputs}


def _check_names(
    names: Sequence[str], context: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]
) -> None:
    known = set(names)
    missing, unknown = known - context.keys(), context.keys() - known
    for index, example in enumerate(examples):
        if unknown or not missing <= example.keys() or not example.keys() <= known:
            raise InvalidInput(f"example {index} must have the features {', '.join(names)}")


def _size(feature: Any) -> int:
    """How many values a feature has, and letters of texts."""
    values = feature if isinstance(feature, list) else [feature]
    texts = (value["b64"] if is_base64(value) else value for value in values)
    return 1 + sum(1 + len(text) if isinstance(text, str) else 1 for text in texts)


def _feature(
    info: TensorInfo, context: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]
) -> np.ndarray:
    """One input of all examples; what they have from the context is read once."""
    own = [example[info.name] for example in examples if info.name in example]
    if len(own) == len(examples):
        return _feature_tensor(own, info)
    tensor = _feature_tensor([context[info.name], *own], info)
    has_own = np.array([info.name in example for example in examples])
    shared: np.ndarray = tensor[np.where(has_own, np.cumsum(has_own), 0)]
    return shared


def _feature_tensor(features: list[Any], info: TensorInfo) -> np.ndarray:
    """A feature is a value or a list of values of one kind: integers, floats, or strings."""
    listed = [feature if isinstance(feature, list) else [feature] for feature in features]
    values = list(chain.from_iterable(listed))
    if len(_kinds(info, values)) > 1:
        for feature in listed:
            if len(_kinds(info, feature)) > 1:
                raise InvalidInput(
                    f"Unexpected element type in feature {info.name!r}: one list holds values of several types"
                )
    if info.dtype != "bool" and bool in set(map(type, values)):
        listed = [[int(v) if isinstance(v, bool) else v for v in feature] for feature in listed]
    if len(info.shape) == 1:
        return _tensor([feature[0] if len(feature) == 1 else feature for feature in listed], info)
    return _tensor(listed, info)


def _kinds(info: TensorInfo, values: list[Any]) -> set[str | None]:
    types = set(map(type, values))
    kinds = {_FEATURE_KINDS.get(kind) for kind in types}
    if None in kinds or (dict in types and not all(isinstance(v, str) or is_base64(v) for v in values)):
        raise InvalidInput(f"feature {info.name!r} must hold numbers or strings")
    return kinds


def encode_predict(
    tensors: ModelTensors,
    request: PredictRequest,
    outputs: Mapping[str, np.ndarray],
    key: str | None = None,
) -> bytes:
    """Encode an answer in the format of its request.

    Args:
        tensors: What the model gives.
        request: The request.
        outputs: The model's outputs by name.
        key: The only key of the answer; empty for an answer without one, None for the one of the format.

    Raises:
        InvalidInput: Row format was asked for, and an output has no batch axis.
    """
    names = [info.name for info in tensors.outputs]
    if not request.rows:
        columns = {name: _lists(name, outputs[name]) for name in names}
        return _keyed("outputs" if key is None else key, columns[names[0]] if len(names) == 1 else columns)
    sizes = {outputs[name].shape[0] if outputs[name].ndim else -1 for name in names}
    if len(sizes) > 1 or -1 in sizes:
        raise InvalidInput("The outputs have no common batch dimension; ask in column format ('inputs')")
    key = "predictions" if key is None else key
    if len(names) == 1:
        return _keyed(key, _lists(names[0], outputs[names[0]]))
    listed = [_lists(name, outputs[name]) for name in names]
    return _keyed(key, [dict(zip(names, row, strict=True)) for row in zip(*listed, strict=True)])


def _keyed(key: str, value: Any) -> bytes:
    return _dump({key: value} if key else value)


def _lists(name: str, array: np.ndarray) -> Any:
    if array.dtype == object:
        return _string_lists(array.tolist(), encoded=name.endswith("_bytes"))
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _string_lists(value: Any, *, encoded: bool) -> Any:
    if isinstance(value, list):
        return [_string_lists(item, encoded=encoded) for item in value]
    return {"b64": base64.b64encode(value).decode()} if encoded else value.decode(errors="replace")


def _dump(value: Any) -> bytes:
    text = orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    # orjson writes what is not finite as null.
    return json.dumps(value, default=_plain).encode() if b"null" in text else text


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(type(value).__name__)


def encode_results(output: np.ndarray, *, labels: Sequence[str] | None) -> bytes:
    """Encode the answer of classify (with labels, `[rows, classes]`) or regress (without, `[rows]` or `[rows, 1]`).

    Raises:
        InvalidInput: The output has another shape.
    """
    if labels is None:
        if output.ndim not in (1, 2) or output.size != len(output):
            raise InvalidInput(
                f"regress needs one number a row, the model gives the shape {list(output.shape)}"
            )
        return _dump({"results": np.ascontiguousarray(output.reshape(-1))})
    if output.ndim != 2:
        raise InvalidInput(f"classify needs a vector of scores a row, the model gives {list(output.shape)}")
    names = [*labels, *(str(index) for index in range(len(labels), output.shape[1]))]
    return _dump({"results": [[list(pair) for pair in zip(names, row, strict=False)] for row in output]})
