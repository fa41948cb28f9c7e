"""Infer requests of gRPC, from the bytes of their messages to arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.echo import quoted
from stoker.errors import InvalidInput, MalformedBody
from stoker.gateway.grpc.contents import from_typed, no_data
from stoker.gateway.grpc.request_messages import RequestMessage
from stoker.gateway.rows.ticket import Rows
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.oip_parameters import check_parameters, tier, timeout_ns
from stoker.wire.oip_regions import RegionReader, from_region, span_of
from stoker.wire.oip_requests import InferRequest, WantedOutput, all_inputs, decode_wanted
from stoker.wire.oip_sequences import sequence_of
from stoker.wire.oip_tensors import DATATYPES, MAX_AXES, as_sent, checked_shape, from_raw

__all__ = ["FINAL_ASKED", "PlainRow", "RequestDecoder"]

FINAL_ASKED: Final = "triton_enable_empty_final_response"
"""The parameter of clients that want to be told of the end of an answer that comes in pieces."""
_MAX_FORMS: Final = 1024
_MAX_REMEMBERED_BYTES: Final = 4096
_MAX_TYPED_BYTES: Final = 8 << 20
"""A message without its raw contents: a number of one byte in it becomes two of eight, for a while."""
_REGION: Final = b"shared_memory"


class RequestDecoder:
    """Decodes the requests to one model.

    Callers repeat theirs with other data and another id. So the form of raw requests is remembered byte for byte with
    what it said, and is checked once.

    Args:
        model: The model's name, for error messages.
        tensors: What it takes and gives.
    """

    def __init__(self, model: str, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._model = model
        self._forms: dict[bytes, _Form] = {}

    def decode(self, message: RequestMessage, regions: RegionReader | None = None) -> InferRequest:
        """Return what a message holds; its outputs are wanted as binary if its inputs are raw.

        Arrays of raw inputs are views of bytes, and cannot be written.

        Args:
            message: It.
            regions: Reads shared memory of the caller; None where there is none.

        Raises:
            MalformedBody: Contents are missing, superfluous, or do not have the size of the shape.
            InvalidInput: It does not fit the model.
            BodyTooLarge: It has more typed contents than are read.
        """
        form = self._forms.get(message.form)
        known = None if form is None else form.decode(message)
        if known is not None:
            return known
        request = message.parsed(_MAX_TYPED_BYTES)
        decoded = self.decode_parsed(message, request, regions)
        if message.raw and _REGION not in message.form and decoded.sequence is None:
            self._remember(message.form, request.inputs, decoded)
        return decoded

    def plain_row(self, message: RequestMessage) -> PlainRow | None:
        """Return what is known of a message whose raw content is one row of the only input, as the model stores it.

        None if it is another one, or the first of its form; `decode` reads it then.
        """
        form = self._forms.get(message.form)
        if form is None or form.row is None or len(message.raw) != 1:
            return None
        return form.row if len(message.raw[0]) == form.row.place.size_bytes else None

    def decode_parsed(
        self, message: RequestMessage, request: Any, regions: RegionReader | None = None
    ) -> InferRequest:
        """Decode a message of which `RequestMessage.parsed` has been seen already; nothing of it is remembered.

        Args:
            message: It.
            request: What was parsed of it.
            regions: Reads shared memory of the caller; None where there is none.

        Raises:
            MalformedBody, InvalidInput: As `decode`.
        """
        sequences, to_regions = self._tensors.sequences, regions is not None
        parameters = _checked_parameters(request, sequences=sequences)
        outputs = [
            {"name": output.name, "parameters": _checked_parameters(output, regions=to_regions)}
            for output in request.outputs
        ]
        # Who has inputs in shared memory reads raw outputs, as with raw inputs.
        raw = bool(message.raw) or _REGION in message.form
        binary = raw or parameters.get("binary_data_output") is True
        wanted = decode_wanted(self._model, self._tensors, outputs, binary_default=binary, regions=to_regions)
        patience_ns, asked_tier = timeout_ns(parameters), tier(parameters)
        inputs = self._inputs(request.inputs, message.raw, regions)
        sequence = sequence_of(parameters) if sequences else None
        return InferRequest(message.id, inputs, wanted, patience_ns, asked_tier, sequence)

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
                arrays[name] = from_typed(model, info, shape, tensor)
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
            raise no_data(self._model, tensor.name)
        return raw[position]

    def _check_bare(self, tensor: Any) -> None:
        if tensor.HasField("contents"):
            raise MalformedBody(
                f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' "
                f"for model '{self._model}'"
            )

    def _remember(self, key: bytes, given: Any, decoded: InferRequest) -> None:
        if len(key) > _MAX_REMEMBERED_BYTES or not all(map(_is_taken_as_it_is, self._tensors.inputs)):
            return
        sent = {tensor.name: tensor.datatype for tensor in given}
        if self._tensors.estimator and sent != {
            info.name: DATATYPES[info.dtype] for info in self._tensors.inputs
        }:
            # They have been converted.
            return
        names = list(sent)
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        places = tuple(
            _Place(name, names.index(name), array.dtype, array.shape, array.nbytes)
            for name, array in decoded.inputs.items()
        )
        row = None
        if len(places) == 1 and self._is_row(places[0]):
            row = PlainRow(places[0], replace(decoded, id="", inputs={}))
        self._forms[key] = _Form(places, decoded.wanted, decoded.timeout_ns, decoded.tier, row)

    def _is_row(self, place: _Place) -> bool:
        tensors = self._tensors
        return tensors.batched and not tensors.sequences and place.shape[0] == 1 and place.dtype.isnative


def _is_taken_as_it_is(info: TensorInfo) -> bool:
    """Whether any raw contents of the right size are an array; not so of strings and booleans."""
    return info.dtype not in ("string", "bool")


class _Place(NamedTuple):
    """Where an input is among the raw contents, and what it is."""

    name: str
    position: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int


class PlainRow(NamedTuple):
    """What requests of one form say that are one row of the only input.

    Attributes:
        place: The input.
        request: The request, without its id and its input.
    """

    place: _Place
    request: InferRequest

    def request_of(self, message: RequestMessage) -> InferRequest:
        """Return what a message says, without its input."""
        said = self.request
        return InferRequest(message.id, {}, said.wanted, said.timeout_ns, said.tier) if message.id else said

    def read(self, content: memoryview, row: memoryview | None) -> Rows:
        """Return the raw content as an array, or write it where the row is to lie; a `Decode`."""
        if row is not None and len(row) == len(content):
            row[:] = content
            return ()
        return (np.ndarray(self.place.shape, self.place.dtype, content),)


class _Form(NamedTuple):
    """What a raw request says beside its id and its data."""

    places: tuple[_Place, ...]
    wanted: tuple[WantedOutput, ...]
    timeout_ns: int | None
    tier: int | None
    row: PlainRow | None

    def decode(self, message: RequestMessage) -> InferRequest | None:
        """A request of this form; None if its data do not have the right sizes."""
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
        # Whether the last answer of a stream is marked: where each request has one answer, that always is.
        if kind is not None and name != FINAL_ASKED:
            parameters[name] = getattr(value, kind)
    check_parameters(parameters, regions=regions, sequences=sequences)
    return parameters
