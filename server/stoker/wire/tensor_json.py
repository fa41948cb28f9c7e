"""JSON of models whose requests are whole tensors: `{"data": tensor}` or `{"data": {name: tensor, ...}}`.

The shapes come from the lists themselves, and are checked against the model's. Models of scikit-learn also take
`{"data": rows, "method": name}`, answered `{name: rows}`, as Azure's own server does
(how-to-deploy-no-code-deployment in its documentation of version 1), and what the scripts of its AutoML take:
`{"Inputs": {"data": rows}, "GlobalParameters": {"method": name}}`, answered `{"Results": rows}`.

Scores may be written as objects by class name, as by a ZipMap: `{"cat": 0.2, "dog": 0.8}` in place of `[0.2, 0.8]`.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import simdjson

from stoker.errors import InvalidInput, quoted, quoted_names
from stoker.settings.choices import WORDS, NonFinite
from stoker.tensors import ModelTensors, NamedSignature, Signature, TensorInfo, TensorSpec
from stoker.wire.json_bodies import MAX_VALUES, check_values, dump, kind_of, parse_document, to_lists
from stoker.wire.nested_lists import (
    BUFFERS,
    KEPT_BYTES,
    Elements,
    RaggedLists,
    elements_of,
    holds_structure,
    numbers,
    pattern,
    structure,
)
from stoker.wire.packed import MISSING
from stoker.wire.tables import columns_of_rows, data_of, is_columns, named_rows

_WORDS: Final = {"b": "booleans", "i": "integers", "u": "non-negative integers", "f": "numbers"}


def decode_tensors(body: bytes, tensors: ModelTensors) -> dict[str, np.ndarray]:
    """Return the inputs by name, with the model's dtypes; bytes may be `{"b64": "..."}` in place of a string."""
    return tensors_of(parse_document(body), tensors)


def tensors_of(document: Any, tensors: ModelTensors) -> dict[str, np.ndarray]:
    """Do what `decode_tensors` does for a parsed body; raises InvalidInput."""
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
        came = (quoted_names(data) or "none") if isinstance(data, dict) else kind_of(data)
        raise InvalidInput(f'"data" must be an object with the inputs {", ".join(names)}; got {came}.')
    arrays = {info.name: as_tensor(data[info.name], info, encoded=True) for info in tensors.inputs}
    check_rows(arrays, tensors)
    return arrays


def check_rows(arrays: Mapping[str, np.ndarray], tensors: ModelTensors) -> None:
    """Raise InvalidInput unless all inputs of a model with a batch axis have the same number of rows, at least 1."""
    if not tensors.batched:
        return
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise InvalidInput.different_rows(counts.items())
    for name, array in arrays.items():
        if not array.ndim:
            raise InvalidInput(f"{name}: expected a list of rows, got a single value.")
    if not all(counts.values()):
        raise InvalidInput("The request holds no rows.")


def as_tensor(value: Any, info: TensorInfo, *, encoded: bool = False) -> np.ndarray:
    """Return nested lists as an array of the declared dtype and shape; strings become `object` arrays of `bytes`.

    With `encoded`, `{"b64": "..."}` may stand for a string.
    """
    try:
        elements = elements_of(value)
    except RaggedLists:
        raise InvalidInput(f"{info.name}: the lists are ragged; expected {info}.") from None
    # Before reshaping: lists can be nested deeper than arrays.
    if not info.fits(elements.shape):
        raise InvalidInput(f"Expected {info}, got the shape {list(elements.shape)}.")
    array = _strings(elements, info, encoded=encoded) if info.dtype == "string" else _numbers(elements, info)
    return array.reshape(elements.shape)


def _numbers(elements: Elements, info: TensorInfo) -> np.ndarray:
    kind = info.kind
    try:
        return as_dtype(numbers(elements, kind, nullable=info.nullable), info)
    except TypeError:
        raise InvalidInput(f"{info.name}: expected {_WORDS[kind]} as {info}, got something else.") from None
    except OverflowError:
        raise InvalidInput(f"{info.name}: a number does not fit {info.dtype}.") from None


def as_dtype(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Cast numbers to the declared dtype; raise InvalidInput if one does not fit."""
    dtype = np.dtype(info.dtype)
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InvalidInput(f"{info.name}: a number does not fit {info.dtype}.")
    try:
        with np.errstate(over="raise"):
            cast = array.astype(dtype, copy=False)
    except FloatingPointError:
        raise InvalidInput(f"{info.name}: a number is too large for {info.dtype}.") from None
    # Rounding to bfloat16 does not overflow for numpy.
    if dtype.kind == "V" and (np.isinf(cast) & ~np.isinf(array)).any():
        raise InvalidInput(f"{info.name}: a number is too large for {info.dtype}.")
    return cast


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
    """Return whether an element is null and stands for a missing value, which booleans cannot be."""
    return item is None and info.nullable and info.dtype.startswith(("string", "float"))


def is_base64(value: Any) -> bool:
    """Return whether a JSON value is `{"b64": "..."}`, TensorFlow Serving's form of bytes."""
    return isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str)


def from_base64(text: str, name: str) -> bytes:
    """Decode base64, also in lines or unpadded; raise InvalidInput, with the value's `name`, for any other text."""
    try:
        # Unlike the module base64, this does not copy the text.
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        pass
    joined = "".join(text.split())
    padding = "" if "=" in joined else "=" * (-len(joined) % 4)
    try:
        return binascii.a2b_base64(joined + padding, strict_mode=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"Unable to base64 decode a value of {name}") from None


def encode_tensors(outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
    """Return the only output as lists, or an object of outputs by name; see `encode_outputs` for NaN."""
    listed: Any = {name: writable(array) for name, array in outputs.items()}
    if len(outputs) == 1:
        (listed,) = listed.values()
    return dump(listed, non_finite)


def writable(array: np.ndarray) -> Any:
    """Return an array in a form that orjson writes: it writes only arrays of numbers that have axes."""
    return to_lists(array) if array.dtype == object or not array.ndim else array


class TensorDecoder:
    """Decodes the bodies of one model as `decode_tensors` does, but lists of numbers faster.

    As for rows of numbers there are two paths with the same result: simdjson flattens the numbers of each input, and
    the brackets prove their shape. Anything else goes to `decode_tensors`, which also reports what is wrong.

    Not thread-safe: it reuses its parser's memory.
    """

    def __init__(self, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._parser = simdjson.Parser()
        self._infos = {info.name: info for info in tensors.inputs} if _are_numbers(tensors) else {}

    def decode(self, body: bytes) -> dict[str, np.ndarray]:
        """Return the inputs by name, with the model's dtypes; raises as `decode_tensors`."""
        if self._infos:
            if len(body) > MAX_VALUES:
                check_values(body)
            arrays = self._decode_fast(body)
            if len(body) > KEPT_BYTES:
                self._parser = simdjson.Parser()
            if arrays is not None:
                return arrays
        return decode_tensors(body, self._tensors)

    def _decode_fast(self, body: bytes) -> dict[str, np.ndarray] | None:
        try:
            document: Any = self._parser.parse(body)
            if len(document) != 1:
                return None
            data: Any = document["data"]
            arrays, patterns = {}, []
            for name, lists in self._named(data):
                if name in arrays:
                    return None
                info = self._infos[name]
                shape = _shape(lists)
                if not info.fits(shape):
                    return None
                arrays[name] = as_dtype(_flattened(lists, info, shape), info)
                patterns.append(pattern(shape))
            if len(arrays) < len(self._infos) or structure(body) != b",".join(patterns):
                return None
            check_rows(arrays, self._tensors)
            return {name: arrays[name] for name in self._infos}
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, InvalidInput):
            return None
        finally:
            # simdjson refuses to parse while anything refers to its last document.
            document = data = lists = None

    def _named(self, data: Any) -> list[tuple[str, Any]]:
        """Return the inputs that a body names; a single input needs no name."""
        if isinstance(data, simdjson.Array):
            (name,) = self._infos
            return [(name, data)]
        # Its `items` would make Python lists of them.
        return [(name, data[name]) for name in data.keys()]  # noqa: SIM118  # it is no dict


def _are_numbers(tensors: ModelTensors) -> bool:
    """Return whether simdjson can flatten all inputs, and no name contains brackets or commas."""
    return all(
        info.dtype != "string" and info.kind in BUFFERS and not holds_structure(info.name)
        for info in tensors.inputs
    )


def _shape(lists: Any) -> tuple[int, ...]:
    """Return the lengths of each first list; the brackets show later whether the others are equal."""
    sizes = []
    while isinstance(lists, simdjson.Array):
        sizes.append(len(lists))
        lists = lists[0]
    return tuple(sizes)


def _flattened(lists: Any, info: TensorInfo, shape: tuple[int, ...]) -> np.ndarray:
    """Return all numbers of lists as `[*shape]` of the widest dtype of their kind.

    Raises ValueError if there are more or fewer, and simdjson's errors for other values.
    """
    buffer_type, dtype = BUFFERS[info.kind]
    values = memoryview(lists.as_buffer(of_type=buffer_type))
    if values.nbytes != math.prod(shape) * 8:
        raise ValueError("the lists are ragged")
    return np.ndarray(shape, dtype, values)


def named_columns(array: np.ndarray, labels: Sequence[str]) -> Any:
    """Return an array of numbers, `[..., columns]`, as nested lists of dictionaries by the labels of the columns.

    The values are numpy's own numbers, which orjson writes like those of arrays.

    Raises:
        ValueError: There are more or fewer columns than labels.
    """
    if array.ndim > 1:
        return [named_columns(part, labels) for part in array]
    if array.shape != (len(labels),):
        raise ValueError(f"a row of shape {list(array.shape)} has no column for each of {len(labels)} names")
    return dict(zip(labels, array, strict=True))


class ColumnNames:
    """Writes the Azure scoring protocol's answers of a model whose scores are objects by class name.

    Its methods replace the functions of `wire.scoring` and `encode_tensors` with the same names.
    """

    def __init__(self, outputs: Sequence[TensorInfo]) -> None:
        self._names = [info.name for info in outputs]
        self._labels = {info.name: info.labels for info in outputs if info.as_objects}

    def encode_tensors(self, outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
        """Return the only output as lists, or an object of outputs by name."""
        listed: Any = {name: self._listed(name, array) for name, array in outputs.items()}
        if len(outputs) == 1:
            (listed,) = listed.values()
        return dump(listed, non_finite)

    def encode_outputs(
        self, specs: Sequence[TensorSpec], outputs: Sequence[np.ndarray], non_finite: NonFinite = WORDS
    ) -> bytes:
        """Return the same for outputs in the order of `specs`."""
        named = {spec.name: array for spec, array in zip(specs, outputs, strict=True)}
        return self.encode_tensors(named, non_finite)

    def encode_each(self, rows: np.ndarray, non_finite: NonFinite = WORDS) -> list[bytes]:
        """Return for each row of the only output the result for that row alone."""
        (name,) = self._names
        # One by one: a label may contain the text between rows, so the text of all rows cannot be split.
        return [self.encode_tensors({name: row[np.newaxis]}, non_finite) for row in rows]

    def _listed(self, name: str, array: np.ndarray) -> Any:
        labels = self._labels.get(name)
        return writable(array) if labels is None else named_columns(array, labels)


_KEY: Final = b'"method"'
_OF_AUTOML: Final = "predict"
"""The default method of AutoML's scripts."""


class MethodRequest(NamedTuple):
    """A decoded request for a `method` of an estimator, with its inputs by name.

    Attributes:
        results: Whether to answer as AutoML's scripts do.
    """

    method: str
    inputs: dict[str, np.ndarray]
    results: bool = False


class MethodDecoder:
    """Decodes the bodies of one estimator. Not thread-safe: it reuses its parser's memory."""

    def __init__(self, signature: Signature) -> None:
        self._methods = {named.name: named for named in signature.signatures}
        self._default = self._methods[signature.method]
        self._decoder = TensorDecoder(self._default.tensors)
        self._lists = not is_columns(self._default.tensors.inputs)

    def decode(self, body: bytes) -> MethodRequest:
        """Return the requested method and its inputs; rows may be objects by column name, if there are such names."""
        if self._lists and _KEY not in body and b"{" not in body[1:]:
            return MethodRequest(self._default.name, self._decoder.decode(body))
        document = parse_document(body)
        if isinstance(document, dict) and "Inputs" in document and "data" not in document:
            return self._decode_automl(document)
        method = self._method_of(document)
        return MethodRequest(method.name, tensors_of(document, method.tensors))

    def _decode_automl(self, document: Mapping[str, Any]) -> MethodRequest:
        given, parameters = document["Inputs"], document.get("GlobalParameters")
        if not isinstance(given, dict) or len(given) != 1:
            raise InvalidInput('"Inputs" must be an object with the rows as its only value: {"data": rows}.')
        (rows,) = given.values()
        named = parameters if isinstance(parameters, dict) and "method" in parameters else {}
        method = self._method_of({"method": self._methods.get(_OF_AUTOML, self._default).name, **named})
        return MethodRequest(method.name, tensors_of({"data": rows}, method.tensors), results=True)

    def _method_of(self, document: Any) -> NamedSignature:
        name = document.get("method", self._default.name) if isinstance(document, dict) else None
        if name is None:
            return self._default
        if not isinstance(name, str) or name not in self._methods:
            served = ", ".join(self._methods)
            shown = quoted(name) if isinstance(name, str) else "something else than a text"
            raise InvalidInput(f'"method" must be one of those that are served here, {served}; got {shown}.')
        return self._methods[name]


def encode_results(outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
    """Return the only output as AutoML's scripts answer; see `encode_outputs` for NaN."""
    (array,) = outputs.values()
    return encode_named({"Results": array}, non_finite)


def encode_named(outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
    """Return an object of all outputs by name, even of a single one; see `encode_outputs` for NaN."""
    listed: Any = {name: writable(array) for name, array in outputs.items()}
    return dump(listed, non_finite)
