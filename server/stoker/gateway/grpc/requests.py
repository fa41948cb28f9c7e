"""Infer requests of gRPC, from the bytes of their messages to arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody, quoted
from stoker.gateway.grpc.contents import missing_data, read_typed
from stoker.gateway.grpc.messages import ModelInferRequest
from stoker.gateway.rows.ticket import Rows
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.datatypes import DATATYPES
from stoker.wire.oip_requests import (
    InferRequest,
    WantedOutput,
    all_inputs,
    check_id,
    check_parameters,
    decode_wanted,
    own_parameters,
    sequence_of,
    tier,
    timeout_ns,
)
from stoker.wire.oip_tensors import (
    MAX_AXES,
    RegionReader,
    as_sent,
    checked_shape,
    from_raw,
    from_region,
    span_of,
)

_NO_REQUEST: Final = "the message is no ModelInferRequest"
_MAX_PARTS: Final = 10_000
"""Inputs, outputs, parameters and raw contents of one message: each costs a hundred times its two bytes."""
_MAX_ODD_BYTES: Final = 4 << 20
"""A message that only the library can read, which makes objects of all of it."""
_MAX_LENGTH_BITS: Final = 28
_MAX_LAYOUTS: Final = 256
_MAX_FIXED_BYTES: Final = 4096
_MAX_BLANKS: Final = 16

_Span = tuple[int, int]
"""Where something begins and ends."""


class RequestMessage(NamedTuple):
    """A `ModelInferRequest` that has been received.

    Attributes:
        form: All other fields as bytes, which callers repeat with every request.
    """

    model_name: str
    model_version: str
    id: str
    raw: list[memoryview]
    form: bytes
    size_bytes: int

    @classmethod
    def read(cls, content: bytes) -> RequestMessage:
        """Read a message; its raw contents are views."""
        try:
            return cls.cut(content, *_split(content))
        except (IndexError, ValueError):
            # Not as clients write messages. It may still be one: the library decides.
            return cls.read_by_library(content)

    @classmethod
    def cut(cls, content: bytes, texts: Sequence[_Span], raw: Sequence[_Span], form: bytes) -> RequestMessage:
        """Make a message from the places of its parts; raise ValueError if a text is not UTF-8."""
        (name, version, identifier), view = texts, memoryview(content)
        check_id(identifier[1] - identifier[0])
        return cls(
            content[slice(*name)].decode(),
            content[slice(*version)].decode(),
            content[slice(*identifier)].decode(),
            [view[start:stop] for start, stop in raw],
            form,
            len(content),
        )

    @classmethod
    def read_by_library(cls, content: bytes) -> RequestMessage:
        """Read a message with the library, if clients have not written it in the usual way; raises as `read`."""
        if len(content) > _MAX_ODD_BYTES:
            raise MalformedBody(f"{_NO_REQUEST}, or has fields that are not known here")
        try:
            message = ModelInferRequest.FromString(content)
        except DecodeError:
            raise MalformedBody(_NO_REQUEST) from None
        raw, identifier = [memoryview(part) for part in message.raw_input_contents], message.id
        check_id(len(identifier.encode()))
        del message.raw_input_contents[:]
        message.id = ""
        form = message.SerializeToString()
        return cls(message.model_name, message.model_version, identifier, raw, form, len(content))

    def parsed(self, most_bytes: int) -> Any:
        """Return the form as a `ModelInferRequest`."""
        if len(self.form) > most_bytes:
            raise BodyTooLarge(
                f"typed contents above {most_bytes >> 20} MiB are not read: send raw_input_contents"
            )
        try:
            return ModelInferRequest.FromString(self.form)
        except DecodeError:
            raise MalformedBody(_NO_REQUEST) from None


class _Layout(NamedTuple):
    """The places of the parts of a message; the same for all messages that differ only in their id and raw contents.

    Attributes:
        fixed: All bytes but the id and raw contents, with the lengths of these: parts, and where they begin.
        identifier, raw: The places of the id and the raw contents.
        form: As in `RequestMessage`.
    """

    fixed: tuple[tuple[bytes, int], ...]
    model_name: str
    model_version: str
    identifier: slice
    raw: tuple[slice, ...]
    form: bytes


class RequestReader:
    """Reads messages as `RequestMessage.read` does.

    Callers repeat their messages with other data and another id. A message that is as long as an earlier one, and has
    the same bytes except in its id and raw contents, has the same fields in the same places.
    """

    def __init__(self) -> None:
        self.layouts: dict[int, _Layout] = {}

    def read(self, content: bytes) -> RequestMessage:
        """Read a message; raises as `RequestMessage.read`."""
        layout = self.layouts.get(len(content))
        if layout is not None:
            fixed, name, version, identifier, raw, form = layout
            for part, start in fixed:
                if not content.startswith(part, start):
                    break
            else:
                view = memoryview(content)
                try:
                    request_id = content[identifier].decode()
                except UnicodeDecodeError:
                    return RequestMessage.read_by_library(content)
                return RequestMessage(
                    name, version, request_id, [view[span] for span in raw], form, len(content)
                )
        try:
            texts, raw_spans, form = _split(content)
            message = RequestMessage.cut(content, texts, raw_spans, form)
        except (IndexError, ValueError):
            return RequestMessage.read_by_library(content)
        self._remember(content, message, texts[2], raw_spans)
        return message

    def _remember(self, content: bytes, message: RequestMessage, identifier: _Span, raw: list[_Span]) -> None:
        blanks = sorted([identifier, *raw]) if identifier[1] else raw
        fixed_bytes = len(content) - sum(stop - start for start, stop in blanks)
        if not raw or len(blanks) > _MAX_BLANKS or fixed_bytes > _MAX_FIXED_BYTES:
            return
        fixed, start = [], 0
        for begin, end in blanks:
            fixed.append((content[start:begin], start))
            start = end
        fixed.append((content[start:], start))
        if len(self.layouts) >= _MAX_LAYOUTS:
            self.layouts.clear()
        self.layouts[len(content)] = _Layout(
            tuple((part, place) for part, place in fixed if part),
            message.model_name,
            message.model_version,
            slice(*identifier),
            tuple(slice(*span) for span in raw),
            message.form,
        )


def _split(content: bytes) -> tuple[list[_Span], list[_Span], bytes]:
    """Find model name, version and id of a `ModelInferRequest`, and its raw contents; return the rest as bytes.

    All fields of this message are length-delimited: a byte that names the field, the length as a varint, the content.
    The library would copy the raw contents twice, and they may have 100 MiB.

    Raises:
        IndexError: The bytes end in a length.
        ValueError: There is an unknown field, or the bytes end in a field.
    """
    view, end = memoryview(content), len(content)
    texts: list[_Span] = [(0, 0)] * 3
    raw: list[_Span] = []
    rest: list[memoryview] = []
    start = 0
    for _ in range(_MAX_PARTS + 1):
        if start == end:
            return texts, raw, b"".join(rest)
        at = start + 1
        size, shift = 0, 0
        while (byte := content[at]) > 0x7F and shift < _MAX_LENGTH_BITS:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        at += 1
        stop = at + (size | byte << shift)
        if stop > end or byte > 0x7F:
            raise ValueError("a field is longer than the message")
        match content[start]:
            case 0x3A:
                raw.append((at, stop))
            case 0x1A:
                texts[2] = (at, stop)
            case 0x0A | 0x12 as tag:
                texts[tag >> 4] = (at, stop)
                rest.append(view[start:stop])
            case 0x22 | 0x2A | 0x32:
                rest.append(view[start:stop])
            case tag:
                raise ValueError(f"the field {tag >> 3} of type {tag & 7} is none of this message")
        start = stop
    raise BodyTooLarge(f"the message has more than {_MAX_PARTS} inputs, outputs and parameters")


FINAL_ASKED: Final = "triton_enable_empty_final_response"
"""The parameter with which clients ask for a last, empty answer after the pieces."""
_MAX_FORMS: Final = 1024
_MAX_REMEMBERED_BYTES: Final = 4096
_MAX_TYPED_BYTES: Final = 8 << 20
"""Longest message without its raw contents: while it is read, each byte may become two numbers of 8 bytes."""
_REGION: Final = b"shared_memory"


class RequestDecoder:
    """Decodes the requests to one model.

    Callers repeat their requests with other data and another id. So the form of a raw request is checked once, and
    kept with the result.
    """

    def __init__(self, model: str, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._model = model
        self.forms: dict[bytes, _Form] = {}

    def decode(self, message: RequestMessage, regions: RegionReader | None = None) -> InferRequest:
        """Decode a message; if its inputs are raw, its outputs will be raw too.

        Arrays of raw inputs are views of bytes, and cannot be written.
        """
        form = self.forms.get(message.form)
        known = None if form is None else form.decode(message)
        if known is not None:
            return known
        request = message.parsed(_MAX_TYPED_BYTES)
        decoded = self.decode_parsed(message, request, regions)
        if message.raw and _REGION not in message.form and decoded.sequence is None:
            self._remember(message.form, request.inputs, decoded)
        return decoded

    def plain_row(self, message: RequestMessage) -> PlainRow | None:
        """Return the form of a message whose raw content is one row of the only input, as the model stores it.

        None for any other message, and for the first of its form: `decode` reads these.
        """
        form = self.forms.get(message.form)
        if form is None or form.row is None or len(message.raw) != 1:
            return None
        return form.row if len(message.raw[0]) == form.row.place.size_bytes else None

    def decode_parsed(
        self, message: RequestMessage, request: Any, regions: RegionReader | None = None
    ) -> InferRequest:
        """Decode a message that `RequestMessage.parsed` has parsed already; its form is not kept."""
        sequences, to_regions = self._tensors.sequences, regions is not None
        parameters = _checked_parameters(request, sequences=sequences)
        outputs = [
            {"name": output.name, "parameters": _checked_parameters(output, regions=to_regions)}
            for output in request.outputs
        ]
        # Callers with inputs in shared memory read raw outputs, like those with raw inputs.
        raw = bool(message.raw) or _REGION in message.form
        binary = raw or parameters.get("binary_data_output") is True
        wanted = decode_wanted(self._model, self._tensors, outputs, binary_default=binary, regions=to_regions)
        patience_ns, requested_tier = timeout_ns(parameters), tier(parameters)
        inputs = self._inputs(request.inputs, message.raw, regions)
        sequence = sequence_of(parameters) if sequences else None
        own = own_parameters(self._tensors, parameters)
        return InferRequest(message.id, inputs, wanted, patience_ns, requested_tier, sequence, own)

    def _inputs(
        self, given: Any, raw: list[memoryview], regions: RegionReader | None
    ) -> dict[str, np.ndarray]:
        model = self._model
        infos = {info.name: info for info in self._tensors.inputs}
        arrays: dict[str, np.ndarray] = {}
        position = 0
        for tensor in given:
            name = tensor.name
            info = as_sent(model, name, tensor.datatype) if self._tensors.estimator else infos.get(name)
            if info is None:
                raise InvalidInput(f"unexpected inference input {quoted(name)} for model '{model}'")
            if name in arrays:
                raise InvalidInput(f"input '{name}' is given twice for model '{model}'")
            parameters = _checked_parameters(tensor, regions=regions is not None)
            shape = checked_shape(model, info, tensor.datatype, tensor.shape[: MAX_AXES + 1])
            span = None if regions is None else span_of(parameters)
            if regions is not None and span is not None:
                self._check_bare(tensor)
                arrays[name] = from_region(model, info, shape, span, regions)
                continue
            if raw:
                arrays[name] = from_raw(model, info, shape, self._raw_of(tensor, raw, position))
            else:
                arrays[name] = read_typed(model, info, shape, tensor)
            position += 1
        if len(raw) > position:
            raise MalformedBody(
                f"expected raw_input_contents for {position} inputs, got {len(raw)} for model '{model}'"
            )
        return all_inputs(model, self._tensors, arrays)

    def _raw_of(self, tensor: Any, raw: list[memoryview], position: int) -> memoryview:
        if tensor.HasField("contents"):
            raise MalformedBody(
                f"contents field must not be specified when using raw_input_contents for '{tensor.name}' "
                f"for model '{self._model}'"
            )
        if position >= len(raw):
            raise missing_data(self._model, tensor.name)
        return raw[position]

    def _check_bare(self, tensor: Any) -> None:
        if tensor.HasField("contents"):
            raise MalformedBody(
                f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' "
                f"for model '{self._model}'"
            )

    def _remember(self, key: bytes, given: Any, decoded: InferRequest) -> None:
        tensors = self._tensors
        if tensors.takes_facts or not all(map(_is_plain, tensors.inputs)) or len(key) > _MAX_REMEMBERED_BYTES:
            return
        sent = {tensor.name: tensor.datatype for tensor in given}
        if self._tensors.estimator and sent != {
            info.name: DATATYPES[info.dtype] for info in self._tensors.inputs
        }:
            # They have been converted.
            return
        names = list(sent)
        if len(self.forms) >= _MAX_FORMS:
            self.forms.clear()
        places = tuple(
            _RawInput(name, names.index(name), array.dtype, array.shape, array.nbytes)
            for name, array in decoded.inputs.items()
        )
        row = None
        if len(places) == 1 and self._is_row(places[0]):
            row = PlainRow(places[0], replace(decoded, id="", inputs={}))
        self.forms[key] = _Form(places, decoded.wanted, decoded.timeout_ns, decoded.tier, row)

    def _is_row(self, place: _RawInput) -> bool:
        tensors = self._tensors
        return tensors.batched and not tensors.sequences and place.shape[0] == 1 and place.dtype.isnative


def _is_plain(info: TensorInfo) -> bool:
    """Whether any raw contents of the right size are valid; strings and booleans have to be checked."""
    return info.dtype not in ("string", "bool")


class _RawInput(NamedTuple):
    """The place of an input among the raw contents, and its tensor."""

    name: str
    position: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int


class PlainRow(NamedTuple):
    """The form of requests with one row of the only input; `request` lacks its id and its input."""

    place: _RawInput
    request: InferRequest

    def request_of(self, message: RequestMessage) -> InferRequest:
        """Return the request of a message, without its input."""
        request = self.request
        return (
            InferRequest(message.id, {}, request.wanted, request.timeout_ns, request.tier)
            if message.id
            else request
        )

    def read(self, content: memoryview, row: memoryview | None) -> Rows:
        """Return the raw content as an array, or write it into `row`; a `Decode`."""
        if row is not None and len(row) == len(content):
            row[:] = content
            return ()
        return (np.ndarray(self.place.shape, self.place.dtype, content),)


class _Form(NamedTuple):
    """A raw request without its id and data."""

    places: tuple[_RawInput, ...]
    wanted: tuple[WantedOutput, ...]
    timeout_ns: int | None
    tier: int | None
    row: PlainRow | None

    def decode(self, message: RequestMessage) -> InferRequest | None:
        raw = message.raw
        if len(raw) != len(self.places):
            return None
        inputs = {}
        for name, position, dtype, shape, size_bytes in self.places:
            content = raw[position]
            if len(content) != size_bytes:
                return None
            inputs[name] = np.ndarray(shape, dtype, content)
        return InferRequest(message.id, inputs, self.wanted, self.timeout_ns, self.tier)


def _checked_parameters(owner: Any, *, regions: bool = False, sequences: bool = False) -> Mapping[str, Any]:
    if not owner.parameters:
        return {}
    parameters = {}
    for name, value in owner.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        # If each request has one answer, the last answer is always marked.
        if kind is not None and name != FINAL_ASKED:
            parameters[name] = getattr(value, kind)
    check_parameters(parameters, regions=regions, sequences=sequences)
    return parameters
