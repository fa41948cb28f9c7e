"""The Open Inference Protocol v2: infer requests and answers, with binary tensor data and classification.

Sources: the protocol's REST text (kserve/open-inference-protocol), and for what that leaves open what Triton
Inference Server does. Sans-I/O: bytes in, arrays out, and back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from stoker.echo import cut, quoted
from stoker.errors import InvalidInput, MalformedBody
from stoker.non_finite import WORDS, NonFinite
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.json_bodies import check_slow, check_text, check_values, finite, load, nesting_depth
from stoker.wire.non_finite import rewritten
from stoker.wire.packed import check_string_count, has_too_many_elements, join_strings, split_strings
from stoker.wire.tensor_json import as_tensor, check_rows

__all__ = [
    "DATATYPES",
    "MAX_AXES",
    "MAX_ID_CHARS",
    "InferRequest",
    "WantedOutput",
    "all_inputs",
    "check_id",
    "check_parameters",
    "checked_shape",
    "classified",
    "classify",
    "datatype_of",
    "decode_infer",
    "decode_inputs",
    "decode_wanted",
    "encode_infer",
    "from_raw",
    "timeout_ns",
    "to_raw",
]

DATATYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
"""The protocol's name of each dtype."""

_BY_DTYPE: Final = {
    np.dtype(object if name == "string" else name): datatype for name, datatype in DATATYPES.items()
}

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_DEPTH: Final = 100
_MAX_CLASSIFIED: Final = 1_000_000
_MAX_CLASSES: Final = 100_000
_MAX_TIMEOUT_US: Final = 1 << 40
MAX_ID_CHARS: Final = 1024
"""The longest id of a request."""
MAX_AXES: Final = 32
"""The most axes of an input: no array has more than 64, and the product of a million sizes takes hours."""


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that a request asks for.

    Attributes:
        name: The output's name.
        binary: Whether it is to come behind the JSON.
        classes: How many classes of the classification extension to give instead of the tensor; 0 for the tensor.
    """

    name: str
    binary: bool
    classes: int = 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded infer request.

    Attributes:
        id: What the caller calls it, or empty.
        inputs: Arrays by name, of the model's dtypes; strings are `object` arrays of `bytes`.
        wanted: The outputs to answer with, in this order.
        timeout_ns: How long the caller is willing to wait, or None.
    """

    id: str
    inputs: dict[str, np.ndarray]
    wanted: tuple[WantedOutput, ...]
    timeout_ns: int | None = None


def decode_infer(model: str, tensors: ModelTensors, body: bytes, json_bytes: int | None) -> InferRequest:
    """Decode a request.

    Args:
        model: The model's name, for error messages.
        tensors: What it takes and gives.
        body: The request's body, uncompressed.
        json_bytes: The value of `Inference-Header-Content-Length`; None if the header is absent: all is JSON.

    Raises:
        MalformedBody: The JSON cannot be read, or the sizes do not add up.
        InvalidInput: It does not fit the model.
        BodyTooLarge: Its JSON has too many values.
    """
    if json_bytes == 0:
        return _decode_raw(model, tensors, body)
    if json_bytes is not None and not 0 < json_bytes <= len(body):
        raise MalformedBody(f"inference header size should be in range (0, {len(body)}), got: {json_bytes}")
    document = _parse(body if json_bytes is None else body[:json_bytes])
    binary = memoryview(b"" if json_bytes is None else body)[json_bytes or 0 :]
    parameters = _parameters(document)
    inputs = decode_inputs(model, tensors, document, binary)
    binary_default = _flag(parameters, "binary_data_output")
    wanted = decode_wanted(model, tensors, document.get("outputs") or [], binary_default=binary_default)
    return InferRequest(_identifier(document), inputs, wanted, timeout_ns(parameters))


def _parse(text: bytes) -> dict[str, Any]:
    if nesting_depth(text) > _MAX_DEPTH:
        raise MalformedBody(f"the request JSON is nested more than {_MAX_DEPTH} levels deep")
    check_values(text)
    try:
        document = load(text)
    except orjson.JSONDecodeError as error:
        document = _parse_with_tokens(text, error)
    if not isinstance(document, dict):
        raise MalformedBody("the request JSON must be an object")
    return document


def _parse_with_tokens(text: bytes, error: Exception) -> Any:
    """Read JSON with the tokens NaN and Infinity, which clients write for numbers that are not finite."""
    check_text(text)
    if b"NaN" in text or b"Infinity" in text:
        check_slow(text)
        try:
            document = json.loads(text, parse_float=finite)
            if _SURROGATE.search(text):
                # Other parsers refuse halves of letters; nobody could write them into an answer. Raises ValueError.
                json.dumps(document, ensure_ascii=False).encode()
            return document
        except (ValueError, RecursionError) as second:
            error = second
    raise MalformedBody(f"failed to parse the request JSON buffer: {error}") from None


def _identifier(document: Mapping[str, Any]) -> str:
    identifier = document.get("id", "")
    if not isinstance(identifier, str):
        raise MalformedBody("'id' must be a string")
    check_id(len(identifier))
    return identifier


def check_id(size: int) -> None:
    """Refuse the id of a request, which its answer repeats, if it is long.

    Args:
        size: Its length, in characters or bytes.

    Raises:
        MalformedBody: It has more than 1024.
    """
    if size > MAX_ID_CHARS:
        raise MalformedBody(f"'id' has more than {MAX_ID_CHARS} characters")


def _parameters(owner: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise MalformedBody("'parameters' must be an object")
    check_parameters(parameters)
    return parameters


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of a request, an input or an output that are reserved, or that nothing here can honour.

    Raises:
        MalformedBody: One is reserved.
        InvalidInput: One asks for a sequence or for shared memory.
    """
    for name, value in parameters.items():
        if name.startswith("triton_"):
            raise MalformedBody(
                f"parameter keys starting with 'triton_' are reserved for Triton usage, got '{cut(name)}'"
            )
        if name in ("sequence_id", "sequence_start", "sequence_end") and value not in (0, "", False):
            raise InvalidInput(f"'{name}' needs a model that keeps state for a sequence; this one has none")
        if name.startswith("shared_memory"):
            raise InvalidInput("shared memory regions are not supported")


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise MalformedBody(f"'{name}' must be true or false")
    return value


def timeout_ns(parameters: Mapping[str, Any]) -> int | None:
    """Return the parameter `timeout`, which is in microseconds, in nanoseconds; None if it is absent or 0.

    Raises:
        MalformedBody: It is no number.
    """
    value = parameters.get("timeout", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MalformedBody("'timeout' must be a number of microseconds")
    return min(value, _MAX_TIMEOUT_US) * 1000 or None


def decode_inputs(
    model: str, tensors: ModelTensors, document: Mapping[str, Any], binary: memoryview
) -> dict[str, np.ndarray]:
    """Return the inputs of a request's JSON by name; strings are `object` arrays of `bytes`.

    Args:
        model: The model's name, for error messages.
        tensors: What it takes.
        document: The JSON.
        binary: What follows it.

    Raises:
        MalformedBody: The sizes do not add up.
        InvalidInput: The inputs do not fit the model.
    """
    listed = document.get("inputs")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise MalformedBody("'inputs' must be a list of objects")
    infos = {info.name: info for info in tensors.inputs}
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for entry in listed:
        name = entry.get("name")
        info = infos.get(name) if isinstance(name, str) else None
        if info is None:
            raise InvalidInput(f"unexpected inference input {quoted(name)} for model '{model}'")
        if name in arrays:
            raise InvalidInput(f"input '{name}' is given twice for model '{model}'")
        shape = checked_shape(model, info, entry.get("datatype"), entry.get("shape"))
        size = _binary_size(model, info, entry)
        if size is None:
            arrays[info.name] = _from_json(model, info, shape, entry)
            continue
        content = binary[start : start + size]
        if len(content) < size:
            raise MalformedBody(
                f"unexpected size for input '{name}', expecting {size - len(content)} additional bytes for "
                f"model '{model}'"
            )
        arrays[info.name] = from_raw(model, info, shape, content)
        start += size
    if start != len(binary):
        raise MalformedBody(f"unexpected additional input data for model '{model}'")
    return all_inputs(model, tensors, arrays)


def all_inputs(model: str, tensors: ModelTensors, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs in the model's order.

    Raises:
        InvalidInput: Some are missing, or they have different numbers of rows.
    """
    if len(arrays) < len(tensors.inputs):
        missing = ", ".join(f"'{info.name}'" for info in tensors.inputs if info.name not in arrays)
        raise InvalidInput(
            f"expected {len(tensors.inputs)} inputs but got {len(arrays)} inputs for model '{model}'. "
            f"Missing: {missing}"
        )
    # A batch of no rows is an answer of no rows.
    if not tensors.batched or any(len(array) for array in arrays.values()):
        check_rows(arrays, tensors)
    return {info.name: arrays[info.name] for info in tensors.inputs}


def checked_shape(model: str, info: TensorInfo, datatype: Any, shape: Any) -> tuple[int, ...]:
    """Return the shape that a request gives an input, which must fit the model's.

    Raises:
        MalformedBody: It is no list of sizes, or has too many elements.
        InvalidInput: The datatype or the shape is not the model's.
        BodyTooLarge: There are too many strings.
    """
    expected = DATATYPES[info.dtype]
    if datatype != expected:
        raise InvalidInput(
            f"inference input '{info.name}' data-type is '{cut(datatype)}', but model '{model}' expects '{expected}'"
        )
    if isinstance(shape, list) and len(shape) > MAX_AXES:
        raise MalformedBody(f"the shape of input '{info.name}' has more than {MAX_AXES} axes")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise MalformedBody(f"the shape of input '{info.name}' must be a list of non-negative integers")
    if has_too_many_elements(shape):
        raise MalformedBody(f"the shape of input '{info.name}' has too many elements")
    if info.dtype == "string":
        check_string_count(math.prod(shape))
    return _check_shape(model, info, tuple(shape))


def _check_shape(model: str, info: TensorInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that fits the model's input; raises InvalidInput for another."""
    if not info.fits(shape):
        raise InvalidInput(
            f"unexpected shape for input '{info.name}' for model '{model}'. "
            f"Expected {_listed(info.shape)}, got {_listed(shape)}"
        )
    return shape


def _listed(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _binary_size(model: str, info: TensorInfo, entry: Mapping[str, Any]) -> int | None:
    """How many bytes behind the JSON are this input's; None if its data is in the JSON."""
    size = _parameters(entry).get("binary_data_size")
    if (size is None) == ("data" not in entry):
        raise MalformedBody(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'; input '{info.name}' of model '{model}' does not"
        )
    if size is not None and (type(size) is not int or size < 0):
        raise MalformedBody(f"'binary_data_size' of input '{info.name}' must be a non-negative integer")
    return size


def _from_json(model: str, info: TensorInfo, shape: tuple[int, ...], entry: Mapping[str, Any]) -> np.ndarray:
    if info.dtype == "float16":
        raise InvalidInput(f"input '{info.name}' of model '{model}' is FP16: send it as binary data")
    data = entry["data"]
    if not isinstance(data, list):
        raise MalformedBody(f"the data of input '{info.name}' must be a list")
    count = math.prod(shape)
    nested = bool(data) and isinstance(data[0], list)
    if info.dtype == "bool" and not nested:
        data = [bool(item) if type(item) is int and item in (0, 1) else item for item in data]
    flat = TensorInfo(info.name, info.dtype, shape if nested else (-1,))
    array = as_tensor(data, flat)
    if array.size != count:
        raise InvalidInput(
            f"Unable to parse 'data' of input '{info.name}' for model '{model}': "
            "Shape does not match true shape of 'data' field"
        )
    return array.reshape(shape)


def from_raw(model: str, info: TensorInfo, shape: tuple[int, ...], content: bytes | memoryview) -> np.ndarray:
    """Return little-endian bytes in C order as an array; `BYTES` have a length before each element.

    Raises:
        MalformedBody: There are more or fewer bytes than the shape needs.
    """
    count = math.prod(shape)
    if info.dtype == "string":
        try:
            return split_strings(content, count).reshape(shape)
        except ValueError as error:
            raise MalformedBody(f"input '{info.name}' of model '{model}': {error}") from None
    dtype = np.dtype(info.dtype).newbyteorder("<")
    if len(content) != count * dtype.itemsize:
        raise MalformedBody(
            f"input '{info.name}' of model '{model}' has {len(content)} bytes, but its shape {_listed(shape)} needs "
            f"{count * dtype.itemsize}"
        )
    if info.dtype == "bool":
        # Other values than 0 and 1 would be neither of both to numpy.
        return np.frombuffer(content, np.uint8).astype(bool).reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


def to_raw(array: np.ndarray) -> bytes:
    """Inverse of `from_raw`."""
    if array.dtype == object:
        return join_strings(array)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def _decode_raw(model: str, tensors: ModelTensors, body: bytes) -> InferRequest:
    """A body without JSON: the bytes of the only input of a batch of one; all outputs come back as binary."""
    if len(tensors.inputs) != 1:
        raise InvalidInput(
            f"a raw binary request needs a model with one input; '{model}' has {len(tensors.inputs)}"
        )
    (info,) = tensors.inputs
    sizes = [-1] if info.any_rank else list(info.shape)
    if tensors.batched and sizes:
        sizes[0] = 1
    free = [index for index, size in enumerate(sizes) if size < 0]
    if len(free) > 1:
        raise InvalidInput(
            f"a raw binary request needs an input with at most one variable dimension; got {info}"
        )
    if info.dtype == "string":
        array = np.empty([1] * len(sizes), object)
        array[...] = body
        _check_shape(model, info, array.shape)
    else:
        if free:
            row_bytes = np.dtype(info.dtype).itemsize * math.prod(size for size in sizes if size >= 0)
            sizes[free[0]] = len(body) // row_bytes if row_bytes else 0
        array = from_raw(model, info, tuple(sizes), body)
    wanted = tuple(WantedOutput(output.name, binary=True) for output in tensors.outputs)
    return InferRequest("", {info.name: array}, wanted)


def decode_wanted(
    model: str, tensors: ModelTensors, listed: Any, *, binary_default: bool
) -> tuple[WantedOutput, ...]:
    """Return the outputs that a request asks for, which are all if it names none.

    Args:
        model: The model's name, for error messages.
        tensors: What it gives.
        listed: The request's `outputs`: objects with `name` and `parameters`.
        binary_default: Whether those are binary that do not say.

    Raises:
        MalformedBody: A parameter has the wrong type.
        InvalidInput: An output is unknown, or asked for twice.
    """
    names = [info.name for info in tensors.outputs]
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise MalformedBody("'outputs' must be a list of objects")
    if not listed:
        return tuple(WantedOutput(name, binary_default) for name in names)
    wanted: dict[str, WantedOutput] = {}
    for entry in listed:
        name = entry.get("name")
        if name not in names:
            raise InvalidInput(f"unexpected inference output {quoted(name)} for model '{model}'")
        if name in wanted:
            raise InvalidInput(f"output '{name}' is asked for twice from model '{model}'")
        parameters = _parameters(entry)
        binary = _flag(parameters, "binary_data") if "binary_data" in parameters else binary_default
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise MalformedBody("'classification' must be a non-negative integer")
        wanted[name] = WantedOutput(name, binary, classes)
    return tuple(wanted.values())


def classified(wanted: WantedOutput, array: np.ndarray, *, batched: bool) -> np.ndarray:
    """Return an output as it was asked for: itself, or its classes; see `classify`."""
    return classify(wanted.name, array, wanted.classes, batched=batched) if wanted.classes else array


def classify(
    name: str, array: np.ndarray, classes: int, *, batched: bool, labels: Sequence[str] = ()
) -> np.ndarray:
    """Return the `classes` largest values of each row as `value:index[:label]`, the largest first.

    Args:
        name: The output's name, for error messages.
        array: Numbers, `[rows, classes]` or of any shape without a batch axis; flattened beside the batch axis.
        classes: How many to give, at most as many as there are.
        batched: Whether the first axis is the batch.
        labels: Names of the classes.

    Raises:
        InvalidInput: The output holds other things than numbers, or has too many of them.
    """
    if array.dtype == object or array.dtype == np.float16:
        raise InvalidInput(f"output '{name}' cannot be classified: it is {datatype_of(array)}")
    if array.size > _MAX_CLASSIFIED:
        raise InvalidInput(
            f"output '{name}' cannot be classified: it has more than {_MAX_CLASSIFIED} elements"
        )
    rows = array.reshape((len(array), math.prod(array.shape[1:])) if batched else (1, array.size))
    classes = min(classes, rows.shape[1])
    if len(rows) * classes > _MAX_CLASSES:
        raise InvalidInput(
            f"output '{name}' cannot be classified: {classes} classes for each of {len(rows)} rows are more than "
            f"the {_MAX_CLASSES} that are given at once"
        )
    # Stable: of equal values the one with the lower index comes first. NaN sorts last.
    keys = np.where(np.isnan(rows), -np.inf, rows) if rows.dtype.kind == "f" else rows
    places = (rows.shape[1] - 1 - np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1])[:, :classes]
    largest = rows[np.arange(len(rows))[:, None], places].reshape(-1).tolist()
    pattern = "%.6f:%d%s" if rows.dtype.kind == "f" else "%d:%d%s"
    known = {index: f":{label}" for index, label in enumerate(labels)}
    answer = np.empty(len(largest), object)
    answer[:] = [
        (pattern % (value, index, known.get(index, ""))).encode()
        for value, index in zip(largest, places.reshape(-1).tolist(), strict=True)
    ]
    return answer.reshape(places.shape if batched else -1)


def datatype_of(array: np.ndarray) -> str:
    """Return the protocol's name of an array's dtype."""
    return _BY_DTYPE[array.dtype]


def encode_infer(
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray],
    *,
    batched: bool,
    non_finite: NonFinite = WORDS,
) -> tuple[int | None, bytes]:
    """Encode an answer.

    Args:
        model: The model's name.
        version: Its version.
        request: What it answers.
        outputs: The model's outputs by name.
        batched: Whether their first axis is the batch.
        non_finite: What becomes of NaN and infinities in JSON.

    Returns:
        The length of the JSON if binary data follows it (`Inference-Header-Content-Length`), else None; and the body.

    Raises:
        InvalidInput: An output cannot be given as it was asked for.
        NonFiniteOutput: A number in JSON is not finite, and that is to be refused.
    """
    entries, binaries = [], []
    for wanted in request.wanted:
        array = classified(wanted, outputs[wanted.name], batched=batched)
        entry: dict[str, Any] = {
            "name": wanted.name, "shape": list(array.shape), "datatype": datatype_of(array),
        }  # fmt: skip
        if wanted.binary:
            content = to_raw(array)
            entry["parameters"] = {"binary_data_size": len(content)}
            binaries.append(content)
        else:
            entry["data"] = _to_json(wanted.name, array)
        entries.append(entry)
    answer: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        answer["id"] = request.id
    answer["outputs"] = entries
    text = _dump(answer, [entry.get("data") for entry in entries], non_finite)
    if not any(binaries):
        return None, text
    return len(text), b"".join((text, *binaries))


def _to_json(name: str, array: np.ndarray) -> Any:
    if array.dtype == object:
        return [_text(name, element) for element in array.reshape(-1).tolist()]
    if array.dtype == np.float16:
        raise InvalidInput(f"output '{name}' is FP16: ask for it as binary data")
    return np.ascontiguousarray(array.reshape(-1))


def _text(name: str, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"output '{name}' holds bytes that are not UTF-8: ask for it as binary data"
        ) from None


def _dump(answer: Mapping[str, Any], data: Sequence[Any], non_finite: NonFinite) -> bytes:
    arrays = [array for array in data if isinstance(array, np.ndarray) and array.dtype.kind == "f"]
    text = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if all(np.isfinite(array).all() for array in arrays):
        return text
    return rewritten(text, answer, np.ndarray.tolist, non_finite, (",", ":"))
