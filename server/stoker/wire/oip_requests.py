"""Infer requests of the Open Inference Protocol v2, with binary tensor data after the JSON.

Sources: the protocol's REST text (kserve/open-inference-protocol) and, where that is silent, the behaviour of Triton
Inference Server. Sans-I/O: bytes in, arrays out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import orjson

from stoker.errors import InvalidInput, MalformedBody, cut, quoted
from stoker.sequence_steps import MAX_ID, SequenceStep
from stoker.sequence_steps import MAX_ID_CHARS as MAX_SEQUENCE_ID_CHARS
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.json_bodies import check_slow, check_text, check_values, finite, load, nests_deeper
from stoker.wire.oip_tensors import (
    RegionReader,
    RegionSpan,
    as_sent,
    check_fit,
    checked_shape,
    fitted_inputs,
    from_raw,
    from_region,
    span_of,
)
from stoker.wire.tensor_json import as_dtype, as_tensor, check_rows

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that a request asks for.

    Attributes:
        binary: Whether it is sent after the JSON.
        classes: How many classes to return instead of the tensor (classification extension); 0 for the tensor.
        labels: The names of the classes; empty if they have none, or for the tensor.
    """

    name: str
    binary: bool
    classes: int = 0
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RegionOutput(WantedOutput):
    """An output to write into a part of the caller's shared memory, its `span`."""

    # A subclass, because outputs without a span are compared for each answer.
    span: RegionSpan = field(kw_only=True)


@dataclass(slots=True)
class InferRequest:
    """A decoded infer request.

    Attributes:
        inputs: Arrays by name, of the model's dtypes; strings are `object` arrays of `bytes`.
        tier: The requested tier, 0 for the highest, or None.
        sequence: The step of a sequence, for a model that keeps state; None if the request names no sequence.
        parameters: The parameters that are the model's own, for a model that gets them; else None.
    """

    id: str
    inputs: dict[str, np.ndarray]
    wanted: tuple[WantedOutput, ...]
    timeout_ns: int | None = None
    tier: int | None = None
    sequence: SequenceStep | None = None
    parameters: Mapping[str, Any] | None = None

    def facts(self) -> np.ndarray:
        """Return what a model gets beside the tensors; see `wire.packed.FACTS`."""
        outputs = [output.name for output in self.wanted]
        text = orjson.dumps({"id": self.id, "parameters": self.parameters, "outputs": outputs})
        array = np.empty(1, object)
        array[0] = text
        return array


def decode_infer(
    model: str,
    tensors: ModelTensors,
    body: bytes,
    json_bytes: int | None,
    regions: RegionReader | None = None,
) -> InferRequest:
    """Decode a request.

    Args:
        json_bytes: The value of `Inference-Header-Content-Length`; None if the header is absent, for JSON alone.
        regions: Reads shared memory of the caller; None if there is none.
    """
    if json_bytes == 0:
        return _decode_raw(model, tensors, body)
    if json_bytes is not None and not 0 < json_bytes <= len(body):
        raise MalformedBody(f"inference header size should be in range (0, {len(body)}), got: {json_bytes}")
    document = _parse(body if json_bytes is None else body[:json_bytes])
    binary = memoryview(b"" if json_bytes is None else body)[json_bytes or 0 :]
    return decode_document(model, tensors, document, binary, regions)


def decode_document(
    model: str,
    tensors: ModelTensors,
    document: Mapping[str, Any],
    binary: memoryview,
    regions: RegionReader | None = None,
) -> InferRequest:
    """Decode a request whose JSON has been parsed, followed by `binary`; see `decode_infer`.

    The `data` of an input in `document` may be a vector of numbers in place of a flat list of them.
    """
    parameters = parameters_of(document, sequences=tensors.sequences)
    inputs = decode_inputs(model, tensors, document, binary, regions)
    binary_default = flag(parameters, "binary_data_output")
    outputs, to_regions = document.get("outputs") or [], regions is not None
    wanted = decode_wanted(model, tensors, outputs, binary_default=binary_default, regions=to_regions)
    sequence = sequence_of(parameters) if tensors.sequences else None
    return InferRequest(
        identifier(document),
        inputs,
        wanted,
        timeout_ns(parameters),
        tier(parameters),
        sequence,
        own_parameters(tensors, parameters),
    )


def _parse(text: bytes) -> dict[str, Any]:
    if nests_deeper(text, _MAX_DEPTH):
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
    """Parse JSON with the tokens NaN and Infinity, which clients write for numbers that are not finite."""
    check_text(text)
    if b"NaN" in text or b"Infinity" in text:
        check_slow(text)
        try:
            document = json.loads(text, parse_float=finite)
            if _SURROGATE.search(text):
                # Raises ValueError for lone surrogates, which other parsers refuse and no answer could hold.
                json.dumps(document, ensure_ascii=False).encode()
            return document
        except (ValueError, RecursionError) as second:
            error = second
    raise MalformedBody(f"failed to parse the request JSON buffer: {error}") from None


def decode_inputs(
    model: str,
    tensors: ModelTensors,
    document: Mapping[str, Any],
    binary: memoryview,
    regions: RegionReader | None = None,
) -> dict[str, np.ndarray]:
    """Return the inputs of a request by name; strings are `object` arrays of `bytes`. The arguments are as above."""
    listed = document.get("inputs")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise MalformedBody("'inputs' must be a list of objects")
    infos = {info.name: info for info in tensors.inputs}
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for entry in listed:
        info = _info_of(model, tensors, infos, entry)
        name = info.name
        if name in arrays:
            raise InvalidInput(f"input '{name}' is given twice for model '{model}'")
        shape = checked_shape(model, info, entry.get("datatype"), entry.get("shape"))
        parameters = parameters_of(entry, regions=regions is not None)
        span = None if regions is None else span_of(parameters)
        size = _binary_size(model, info, entry, parameters, span)
        if regions is not None and span is not None:
            arrays[info.name] = from_region(model, info, shape, span, regions)
            continue
        if size is None:
            arrays[info.name] = _from_json(model, info, shape, entry)
            continue
        arrays[info.name] = _from_binary(model, info, shape, binary[start : start + size], size)
        start += size
    if start != len(binary):
        raise MalformedBody(f"unexpected additional input data for model '{model}'")
    return all_inputs(model, tensors, arrays)


def _info_of(
    model: str, tensors: ModelTensors, infos: Mapping[str, TensorInfo], entry: Mapping[str, Any]
) -> TensorInfo:
    """Return how to read an input of a request; inputs of an estimator are read as sent, and fitted later."""
    name = entry.get("name")
    info = infos.get(name) if isinstance(name, str) else None
    if tensors.estimator and isinstance(name, str):
        sent = as_sent(model, name, entry.get("datatype"))
        if isinstance(entry.get("data"), np.ndarray) and (info is None or info.dtype != sent.dtype):
            raise InvalidInput(f"the numbers of input '{name}' have been read as others than they are")
        return sent
    if info is None:
        raise InvalidInput(f"unexpected inference input {quoted(name)} for model '{model}'")
    return info


def _from_binary(
    model: str, info: TensorInfo, shape: tuple[int, ...], content: memoryview, size: int
) -> np.ndarray:
    if len(content) < size:
        raise MalformedBody(
            f"unexpected size for input '{info.name}', expecting {size - len(content)} additional bytes for "
            f"model '{model}'"
        )
    return from_raw(model, info, shape, content)


def all_inputs(model: str, tensors: ModelTensors, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs in the model's order; an estimator may get other tensors than it declares."""
    if tensors.estimator:
        arrays = fitted_inputs(model, tensors, arrays)
    missing = [info.name for info in tensors.inputs if info.name not in arrays and not info.optional]
    if missing or (tensors.inputs and not arrays):
        named = ", ".join(f"'{name}'" for name in missing or [info.name for info in tensors.inputs])
        raise InvalidInput(
            f"expected {len(tensors.inputs)} inputs but got {len(arrays)} inputs for model '{model}'. "
            f"Missing: {named}"
        )
    # A batch without rows gets an answer without rows.
    if not tensors.batched or any(array.shape[:1] != (0,) for array in arrays.values()):
        check_rows(arrays, tensors)
    return {info.name: arrays[info.name] for info in tensors.inputs if info.name in arrays}


def _binary_size(
    model: str,
    info: TensorInfo,
    entry: Mapping[str, Any],
    parameters: Mapping[str, Any],
    span: RegionSpan | None,
) -> int | None:
    """Return how many bytes after the JSON belong to this input; None if its data is in the JSON or in a region."""
    size = parameters.get("binary_data_size")
    if (size is not None) + ("data" in entry) + (span is not None) != 1:
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
    array = _listed_data(info, shape, entry["data"])
    if array.size != math.prod(shape):
        raise InvalidInput(
            f"Unable to parse 'data' of input '{info.name}' for model '{model}': "
            "Shape does not match true shape of 'data' field"
        )
    return array.reshape(shape)


def _listed_data(info: TensorInfo, shape: tuple[int, ...], data: Any) -> np.ndarray:
    if isinstance(data, np.ndarray):
        return as_dtype(data, info)
    if not isinstance(data, list):
        raise MalformedBody(f"the data of input '{info.name}' must be a list")
    nested = bool(data) and isinstance(data[0], list)
    if info.dtype == "bool" and not nested:
        data = [bool(item) if type(item) is int and item in (0, 1) else item for item in data]
    return as_tensor(data, replace(info, shape=shape if nested else (-1,), any_rank=False))


def _decode_raw(model: str, tensors: ModelTensors, body: bytes) -> InferRequest:
    """Decode a body without JSON: the only input of a batch of one; all outputs are returned as binary."""
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
        check_fit(model, info, array.shape)
    else:
        if free:
            row_bytes = np.dtype(info.dtype).itemsize * math.prod(size for size in sizes if size >= 0)
            sizes[free[0]] = len(body) // row_bytes if row_bytes else 0
        array = from_raw(model, info, tuple(sizes), body)
    wanted = decode_wanted(model, tensors, [], binary_default=True)
    return InferRequest("", {info.name: array}, wanted)


def decode_wanted(
    model: str, tensors: ModelTensors, listed: Any, *, binary_default: bool, regions: bool = False
) -> tuple[WantedOutput, ...]:
    """Return the outputs that a request asks for; if it names none, all of them, or the first one of an estimator.

    Args:
        listed: The request's `outputs`: objects with `name` and `parameters`.
        binary_default: Whether outputs are binary that do not say.
    """
    labels = {info.name: info.labels for info in tensors.outputs}
    names = list(labels)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise MalformedBody("'outputs' must be a list of objects")
    if not listed:
        return tuple(WantedOutput(name, binary_default) for name in names[: 1 if tensors.estimator else None])
    if tensors.estimator and len(listed) > 1:
        raise InvalidInput(
            f"the outputs of model '{model}' are its methods, of which a request asks one; send a request for each"
        )
    wanted: dict[str, WantedOutput] = {}
    for entry in listed:
        name = entry.get("name")
        if name not in names:
            raise InvalidInput(f"unexpected inference output {quoted(name)} for model '{model}'")
        if name in wanted:
            raise InvalidInput(f"output '{name}' is asked for twice from model '{model}'")
        parameters = parameters_of(entry, regions=regions)
        binary = flag(parameters, "binary_data") if "binary_data" in parameters else binary_default
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise MalformedBody("'classification' must be a non-negative integer")
        called = labels[name] if classes else ()
        span = span_of(parameters) if regions else None
        wanted[name] = (
            WantedOutput(name, binary, classes, called)
            if span is None
            # Binary: if it does not go into a region after all, it is sent as binary too, as by Triton.
            else RegionOutput(name, True, classes, called, span=span)
        )
    return tuple(wanted.values())


_MAX_TIMEOUT_US: Final = 1 << 40
_SEQUENCE: Final = ("sequence_id", "sequence_start", "sequence_end")
_OF_THE_SERVER: Final = frozenset({*_SEQUENCE, "timeout", "priority", "binary_data_output"})
MAX_ID_CHARS: Final = 1024
"""The longest id of a request."""


def identifier(document: Mapping[str, Any]) -> str:
    """Return the id of a request; empty if it has none."""
    text = document.get("id", "")
    if not isinstance(text, str):
        raise MalformedBody("'id' must be a string")
    check_id(len(text))
    return text


def check_id(size: int) -> None:
    """Raise MalformedBody if a request's id, which its answer repeats, has more than 1024 characters or bytes."""
    if size > MAX_ID_CHARS:
        raise MalformedBody(f"'id' has more than {MAX_ID_CHARS} characters")


def parameters_of(
    owner: Mapping[str, Any], *, regions: bool = False, sequences: bool = False
) -> Mapping[str, Any]:
    """Return the checked parameters of a request, an input or an output in JSON; see `check_parameters`."""
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise MalformedBody("'parameters' must be an object")
    check_parameters(parameters, regions=regions, sequences=sequences)
    return parameters


def own_parameters(tensors: ModelTensors, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of a request that its model gets: scalars that mean nothing to the server."""
    if not tensors.takes_facts:
        return None
    return {
        name: value
        for name, value in parameters.items()
        if name not in _OF_THE_SERVER and isinstance(value, bool | int | float | str)
    }


def check_parameters(
    parameters: Mapping[str, Any], *, regions: bool = False, sequences: bool = False
) -> None:
    """Refuse parameters of a request, an input or an output that are reserved or cannot be honoured.

    Data may be in shared memory if `regions`; a model keeps state for sequences if `sequences`.
    """
    for name, value in parameters.items():
        if name.startswith("triton_"):
            raise MalformedBody(
                f"parameter keys starting with 'triton_' are reserved for Triton usage, got '{cut(name)}'"
            )
        if not sequences and name in _SEQUENCE and value not in (0, "", False):
            raise InvalidInput(f"'{name}' needs a model that keeps state for a sequence; this one has none")
        if name.startswith("shared_memory") and not regions:
            raise InvalidInput("shared memory regions are not supported")


def flag(parameters: Mapping[str, Any], name: str) -> bool:
    """Return a boolean parameter, False if absent; raise MalformedBody if it is something else."""
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise MalformedBody(f"'{name}' must be true or false")
    return value


def timeout_ns(parameters: Mapping[str, Any]) -> int | None:
    """Return the parameter `timeout`, which is in microseconds, in nanoseconds; None if it is absent or 0."""
    value = parameters.get("timeout", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MalformedBody("'timeout' must be a number of microseconds")
    return min(value, _MAX_TIMEOUT_US) * 1000 or None


def tier(parameters: Mapping[str, Any]) -> int | None:
    """Return the tier for the parameter `priority`, 0 for the highest; None if it is absent or 0.

    Triton's priorities: 1 is the highest, greater numbers are lower, and 0 is the model's default.
    """
    value = parameters.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MalformedBody("'priority' must be a number from 0 on")
    return min(value, 3) - 1 if value else None


def sequence_of(parameters: Mapping[str, Any]) -> SequenceStep | None:
    """Return the step of a sequence in a request's parameters; None if they name none, by 0 or an empty text.

    Source: Triton's sequence extension.
    """
    name = parameters.get("sequence_id", 0)
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise MalformedBody("'sequence_id' must be a number or a text")
    if isinstance(name, str) and len(name) > MAX_SEQUENCE_ID_CHARS:
        raise MalformedBody(f"'sequence_id' has more than {MAX_SEQUENCE_ID_CHARS} characters")
    if isinstance(name, int) and not 0 <= name <= MAX_ID:
        raise MalformedBody("'sequence_id' must be a number from 0 to 2^64 - 1")
    start, end = flag(parameters, "sequence_start"), flag(parameters, "sequence_end")
    return SequenceStep(name, start, end) if name else None
