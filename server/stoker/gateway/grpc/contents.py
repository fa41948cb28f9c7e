"""Infer requests and answers of the Open Inference Protocol v2 as its gRPC messages.

Tensors come as raw bytes, one for each input, or typed, in the repeated field of their datatype. An answer has the
form of its request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.errors import InvalidInput, MalformedBody
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.oip import (
    InferRequest,
    WantedOutput,
    all_inputs,
    check_parameters,
    checked_shape,
    classified,
    datatype_of,
    decode_wanted,
    from_raw,
    timeout_ns,
    to_raw,
)
from stoker.wire.tensor_json import as_dtype

__all__ = ["RequestDecoder", "decode_request", "fill_answer"]

_FIELDS: Final = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of each datatype; FP16 has none."""

_FIXED_SIZE: Final = {"bool_contents": "?", "fp32_contents": "<f4", "fp64_contents": "<f8"}
"""Fields whose elements all have one size on the wire, and how they lie there."""

_LENGTH_DELIMITED: Final = 2
_MAX_FORMS: Final = 1024
_MAX_FORM_BYTES: Final = 4096
_FINAL: Final = "triton_enable_empty_final_response"


class RequestDecoder:
    """Decodes the requests to one model.

    Callers repeat theirs with other data and another id. So the form of raw requests, which is everything else, is
    remembered byte for byte with what it said, and is checked once.

    Args:
        model: The model's name, for error messages.
        tensors: What it takes and gives.
    """

    def __init__(self, model: str, tensors: ModelTensors) -> None:
        self.tensors = tensors
        self._model = model
        self._forms: dict[bytes, _Form] = {}

    def decode(self, request: Any) -> InferRequest:
        """Return what `decode_request` returns; the data of raw inputs is taken out of the message."""
        raw = list(request.raw_input_contents)
        if not raw:
            return decode_request(self._model, self.tensors, request)
        identifier = request.id
        del request.raw_input_contents[:]
        request.id = ""
        key: bytes = request.SerializeToString()
        request.id = identifier
        form = self._forms.get(key)
        decoded = None if form is None else form.decode(identifier, raw)
        if decoded is not None:
            return decoded
        request.raw_input_contents.extend(raw)
        decoded = decode_request(self._model, self.tensors, request)
        if len(key) <= _MAX_FORM_BYTES and all(
            array.dtype not in (bool, object) for array in decoded.inputs.values()
        ):
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            places = {tensor.name: place for place, tensor in enumerate(request.inputs)}
            self._forms[key] = _Form.of(decoded, places)
        return decoded


class _Place(NamedTuple):
    """Where an input is among the raw contents, and what it is."""

    name: str
    position: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int


class _Form(NamedTuple):
    """What a raw request says beside its id and its data."""

    places: tuple[_Place, ...]
    wanted: tuple[WantedOutput, ...]
    timeout_ns: int | None

    @classmethod
    def of(cls, decoded: InferRequest, places: Mapping[str, int]) -> _Form:
        """The form of a request whose inputs stand at these places."""
        return cls(
            tuple(
                _Place(name, places[name], array.dtype, array.shape, array.nbytes)
                for name, array in decoded.inputs.items()
            ),
            decoded.wanted,
            decoded.timeout_ns,
        )

    def decode(self, identifier: str, raw: list[bytes]) -> InferRequest | None:
        """A request of this form with these data; None if they do not have its sizes."""
        if len(raw) != len(self.places):
            return None
        inputs = {}
        for name, position, dtype, shape, size_bytes in self.places:
            content = raw[position]
            if len(content) != size_bytes:
                return None
            inputs[name] = np.ndarray(shape, dtype, content)
        return InferRequest(identifier, inputs, self.wanted, self.timeout_ns)


def decode_request(model: str, tensors: ModelTensors, request: Any) -> InferRequest:
    """Return what a `ModelInferRequest` holds; its outputs are wanted as binary if its inputs are raw.

    Arrays of raw inputs are views of bytes, and cannot be written.

    Args:
        model: The model's name, for error messages.
        tensors: What it takes and gives.
        request: The message.

    Raises:
        MalformedBody: Contents are missing, superfluous, or do not have the size of the shape.
        InvalidInput: It does not fit the model.
    """
    parameters = _checked_parameters(request)
    raw = bool(request.raw_input_contents)
    outputs = [{"name": output.name, "parameters": _checked_parameters(output)} for output in request.outputs]
    binary = raw or parameters.get("binary_data_output") is True
    wanted = decode_wanted(model, tensors, outputs, binary_default=binary)
    patience_ns = timeout_ns(parameters)
    inputs = _decode_inputs(model, tensors, request, raw=raw)
    return InferRequest(request.id, inputs, wanted, patience_ns)


def _checked_parameters(owner: Any) -> dict[str, Any]:
    if not owner.parameters:
        return {}
    parameters = {}
    for name, value in owner.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        # Clients ask with it for the mark of a stream's last answer, which every answer here has.
        if kind is not None and name != _FINAL:
            parameters[name] = getattr(value, kind)
    check_parameters(parameters)
    return parameters


def _decode_inputs(model: str, tensors: ModelTensors, request: Any, *, raw: bool) -> dict[str, np.ndarray]:
    infos = {info.name: info for info in tensors.inputs}
    arrays: dict[str, np.ndarray] = {}
    for index, tensor in enumerate(request.inputs):
        name = tensor.name
        info = infos.get(name)
        if info is None:
            raise InvalidInput(f"unexpected inference input {name!r} for model '{model}'")
        if name in arrays:
            raise InvalidInput(f"input '{name}' is given twice for model '{model}'")
        _checked_parameters(tensor)
        shape = checked_shape(model, info, tensor.datatype, list(tensor.shape))
        if raw:
            arrays[name] = from_raw(model, info, shape, _raw(model, request, tensor, index))
        else:
            arrays[name] = _from_typed(model, info, shape, tensor)
    if len(request.raw_input_contents) > len(request.inputs):
        raise MalformedBody(
            f"expected raw_input_contents for {len(request.inputs)} inputs, got "
            f"{len(request.raw_input_contents)} for model '{model}'"
        )
    return all_inputs(model, tensors, arrays)


def _raw(model: str, request: Any, tensor: Any, index: int) -> bytes:
    if tensor.HasField("contents"):
        raise MalformedBody(
            f"contents field must not be specified when using raw_input_contents for '{tensor.name}' "
            f"for model '{model}'"
        )
    if index >= len(request.raw_input_contents):
        raise _no_data(model, tensor.name)
    content: bytes = request.raw_input_contents[index]
    return content


def _no_data(model: str, name: str) -> MalformedBody:
    return MalformedBody(f"unable to find data for input tensor '{name}' for model '{model}' in request")


def _from_typed(model: str, info: TensorInfo, shape: tuple[int, ...], tensor: Any) -> np.ndarray:
    field = _FIELDS.get(tensor.datatype)
    if field is None:
        raise InvalidInput(
            f"input '{info.name}' of model '{model}' is {tensor.datatype}: send it in raw_input_contents"
        )
    contents = tensor.contents
    if tensor.HasField("contents"):
        contents.DiscardUnknownFields()
    filled = [descriptor.name for descriptor, _ in contents.ListFields()]
    if any(name != field for name in filled):
        raise MalformedBody(
            f"unexpected explicit tensor data for input tensor '{info.name}' for model '{model}': "
            f"{tensor.datatype} comes in {field}, got {', '.join(filled)}"
        )
    elements = getattr(contents, field)
    count = int(np.prod(shape, dtype=np.int64))
    if len(elements) != count:
        if not filled:
            raise _no_data(model, info.name)
        raise MalformedBody(
            f"input '{info.name}' of model '{model}' has {len(elements)} elements, but its shape "
            f"[{','.join(map(str, shape))}] needs {count}"
        )
    return _array(info, field, contents, elements).reshape(shape)


def _array(info: TensorInfo, field: str, contents: Any, elements: Any) -> np.ndarray:
    """The elements of the only field that is filled, as a vector of the declared dtype."""
    if info.dtype == "string":
        array = np.empty(len(elements), object)
        array[:] = list(elements)
        return array
    if field in _FIXED_SIZE:
        # Packed, their bytes end the message; a hundred times faster than asking for one after the other.
        dtype = np.dtype(_FIXED_SIZE[field])
        size = len(elements) * dtype.itemsize
        packed = contents.SerializeToString()
        return np.frombuffer(packed, dtype, len(elements), len(packed) - size)
    wide = {"int_contents": np.int32, "uint_contents": np.uint32}.get(field, info.dtype)
    return as_dtype(np.fromiter(elements, wide, len(elements)), info)


def fill_answer(
    answer: Any,
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray],
    *,
    batched: bool,
) -> None:
    """Write an answer: raw if the request was, or if an output has a datatype without typed contents.

    Args:
        answer: An empty `ModelInferResponse`.
        model: The model's name.
        version: Its version.
        request: What it answers.
        outputs: The model's outputs by name.
        batched: Whether their first axis is the batch.

    Raises:
        InvalidInput: An output cannot be given as it was asked for.
    """
    answer.model_name, answer.model_version, answer.id = model, version, request.id
    arrays = [classified(wanted, outputs[wanted.name], batched=batched) for wanted in request.wanted]
    raw = any([wanted.binary for wanted in request.wanted] + [array.dtype == np.float16 for array in arrays])
    for wanted, array in zip(request.wanted, arrays, strict=True):
        datatype = datatype_of(array)
        tensor = answer.outputs.add(name=wanted.name, datatype=datatype, shape=array.shape)
        if raw:
            answer.raw_output_contents.append(to_raw(array))
        else:
            _fill_typed(tensor.contents, _FIELDS[datatype], array)


def _fill_typed(contents: Any, field: str, array: np.ndarray) -> None:
    if field not in _FIXED_SIZE:
        getattr(contents, field).extend(array.reshape(-1).tolist())
    elif array.size:
        packed = np.ascontiguousarray(array, np.dtype(_FIXED_SIZE[field])).tobytes()
        tag = contents.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED
        contents.MergeFromString(bytes([tag]) + _varint(len(packed)) + packed)


def _varint(number: int) -> bytes:
    """A length as protocol buffers write it: seven bits a byte, the lowest first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
