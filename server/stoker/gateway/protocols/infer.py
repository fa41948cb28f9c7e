"""Infer requests of the Open Inference Protocol v2 as a dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker.errors import InvalidInput, MalformedBody, StokerError, cut
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES
from stoker.gateway.http.responses import JSON_TYPE_LINE
from stoker.gateway.regions.regions import LimitedReader, OutputRegions, Regions
from stoker.gateway.scoring.dialects import TensorDialect, submit_tensors
from stoker.tensors import ModelTensors, NamedSignature
from stoker.wire.oip_codec import InferCodec
from stoker.wire.packed import FACTS

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, ServiceBase
    from stoker.wire.oip_requests import InferRequest
    from stoker.wire.script_requests import RequestHead

JSON_LENGTH: Final = b"inference-header-content-length"
_TIMEOUT: Final = b'"timeout"'
_BINARY_TYPE: Final = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"


class InferDialect(TensorDialect):
    """Infer requests with a given length of the JSON before their binary data."""

    __slots__ = ("_regions", "json_bytes")

    def __init__(self, json_bytes: int | None, regions: Regions | None = None) -> None:
        """Create the dialect for this `Inference-Header-Content-Length`, None for requests without it.

        The requests may refer to `regions` of shared memory, if there are any.
        """
        self.json_bytes, self._regions = json_bytes, regions

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that decodes long JSON has no access to regions.
        return InferDialect, (self.json_bytes,)

    @classmethod
    def of(cls, headers: Iterable[tuple[bytes, bytes]], regions: Regions | None = None) -> InferDialect:
        """Return the dialect for a request with these headers."""
        lengths = {value for name, value in headers if name == JSON_LENGTH}
        if len(lengths) > 1:
            raise MalformedBody("Inference-Header-Content-Length is given twice, with different values")
        return cls.for_length(next(iter(lengths), None), regions)

    @classmethod
    def for_length(cls, value: bytes | None, regions: Regions | None = None) -> InferDialect:
        """Return the dialect for a value of `Inference-Header-Content-Length`, which may be empty."""
        if not value:
            return cls(None, regions)
        if not re.fullmatch(rb"[0-9]{1,18}", value):
            raise MalformedBody(
                f"inference header size should be a number, got: {cut(value.decode('latin-1'))}"
            )
        return cls(int(value), regions)

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Whether a body is mostly JSON, or may contain strings: both are decoded item by item."""
        del body, head
        if self.json_bytes is None or self.json_bytes > LARGE_BODY_BYTES:
            return True
        tensors = None if service.signature is None else service.signature.model_tensors
        return tensors is not None and any(info.dtype == "string" for info in tensors.inputs)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode the request and queue its tensors."""
        del head
        codec, regions = codec_of(call.service), self._regions
        outputs = None
        if regions is None:
            request = codec.decode(body, self.json_bytes)
        else:
            reader = LimitedReader(regions, call.service.limits.max_body_bytes)
            request = codec.decode(body, self.json_bytes, reader)
            outputs = OutputRegions.find(regions, request, batched=tensors_of(call.service).batched)
        call.write = (
            partial(write_answer, codec, request) if outputs is None else partial(_write, codec, outputs)
        )
        submit_request(call, exchange, request)

    def timeout_ns(self, service: ServiceBase, body: bytes) -> int | None:
        """Return the parameter `timeout` of a request that waits before it is submitted."""
        if _TIMEOUT not in body:
            return None
        try:
            return codec_of(service).decode(body, self.json_bytes).timeout_ns
        except StokerError:
            # The error is reported when the request is submitted.
            return None


def submit_request(call: Call, exchange: Exchange, request: InferRequest) -> None:
    """Queue the tensors of a request, with the priority and deadline of its parameters."""
    set_urgency(call, request)
    if request.sequence is not None:
        call.sequence = request.sequence
        if not all(map(len, request.inputs.values())):
            raise InvalidInput("A request of a sequence has one row, not 0.")
    # The output of an estimator is the method, which is a signature.
    method = request.wanted[0].name if exchange.signature.method else ""
    inputs, tensors = request.inputs, exchange.signature.tensors
    if tensors is not None and tensors.takes_facts:
        inputs = {**inputs, FACTS: request.facts()}
    submit_tensors(call, exchange, inputs, method)


def set_urgency(call: Call, request: InferRequest) -> None:
    """Set the deadline and tier of a call from its request."""
    if request.timeout_ns is not None or request.tier is not None:
        call.shorten(request.timeout_ns)
        call.request_tier(request.tier)


def write_answer(
    codec: InferCodec, request: InferRequest, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, bytes]:
    """Encode the requested outputs."""
    length, body = codec.encode(request, outputs)
    return JSON_TYPE_LINE if length is None else _BINARY_TYPE % length, body


def codec_of(service: ServiceBase) -> InferCodec:
    """Return the codec for the requests and answers of a model."""
    codec = service.codecs.get(InferCodec)
    if codec is None:
        codec = service.codecs[InferCodec] = InferCodec(
            service.name, service.version, tensors_of(service), service.facts.non_finite
        )
    return codec


def signatures_of(service: ServiceBase) -> tuple[NamedSignature, ...]:
    """Return the signatures of a model, the default first."""
    if service.signature is None:
        raise service.not_ready()
    signatures = service.signature.named
    if not signatures:
        raise InvalidInput(
            f"'{service.name}' is an entry script that takes whole bodies: post them to its scoring URI"
        )
    return signatures


def tensors_of(service: ServiceBase) -> ModelTensors:
    """Return the tensors of a model by its default signature, with the outputs of all methods of an estimator.

    Raises as `signatures_of`.
    """
    signatures = signatures_of(service)
    tensors = signatures[0].tensors
    if not tensors.estimator:
        return tensors
    return replace(tensors, outputs=tuple(out for one in signatures for out in one.tensors.outputs))


def _write(
    codec: InferCodec, output_regions: OutputRegions, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, bytes]:
    return write_answer(codec, output_regions.write(outputs), outputs)
