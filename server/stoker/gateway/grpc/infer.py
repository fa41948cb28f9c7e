"""Infer calls: a dialect of scoring, how their models are found, and the unary calls and streams that make them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from stoker.errors import StokerError, cut
from stoker.gateway.grpc.calls import (
    BEARER_METADATA,
    CallConnection,
    Method,
    RpcCall,
    StreamedCall,
    UnaryCall,
)
from stoker.gateway.grpc.framing import Message
from stoker.gateway.grpc.inference import (
    Inference,
    InferenceOwner,
    PieceRequest,
    PiecewiseInference,
    WaitingInference,
)
from stoker.gateway.grpc.messages import ModelInferResponse, ModelStreamInferResponse
from stoker.gateway.grpc.metadata import error_fields, error_text
from stoker.gateway.grpc.requests import RequestDecoder, RequestMessage, RequestReader
from stoker.gateway.grpc.responses import IS_FINAL, AnswerWriter, stream_answer
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance
from stoker.gateway.protocols.infer import set_urgency, submit_request, tensors_of
from stoker.gateway.regions.regions import LimitedReader, OutputRegions
from stoker.gateway.scoring.call_options import TIER_HEADER, CallOptions, read_call_options
from stoker.gateway.scoring.caller_identity import identify_caller
from stoker.gateway.scoring.dialects import TensorDialect
from stoker.keys.callers import DEFAULT
from stoker.wire.script_requests import RequestHead

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.metadata import CallHead
    from stoker.gateway.regions.regions import Regions
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, ServiceBase
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms
    from stoker.wire.http2.fields import Fields
    from stoker.wire.http2.streams import Stream
    from stoker.wire.oip_requests import InferRequest

_TIMEOUT: Final = b"timeout"


class ModelReference(Protocol):
    """A request that names a model, and perhaps a version, by its number."""

    @property
    def model_name(self) -> str:
        """The name."""

    @property
    def model_version(self) -> str:
        """The number; empty for none."""


class _Codec(NamedTuple):
    decoder: RequestDecoder
    writer: AnswerWriter
    has_rows: bool


class GrpcDialect(TensorDialect):
    """Requests whose tensors are views of the message, and whose errors are the fields that end a call."""

    __slots__ = ()

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Always False: raw contents are not copied, and typed ones are bounded."""
        del service, body, head
        return False

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return the fields that end a call, as lines, and the error's message."""
        lines = b"".join(b"%b: %b\r\n" % field for field in error_fields(error))
        return error.status, lines, error_text(error).encode()


class _InferDialect(GrpcDialect):
    """Infer requests; `Call.context` is the `Inference`."""

    __slots__ = ()

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del body, head
        inference: Inference = call.context
        codec, message = _codec_of(call.service), inference.request
        assert message is not None, "read before the service was found"
        inference.writer, inference.output_regions = codec.writer, None
        row = codec.decoder.plain_row(message) if codec.has_rows else None
        if row is None:
            inference.decoded = decoded = self._decode(call, codec.decoder, message)
            submit_request(call, exchange, decoded)
        else:
            inference.decoded = row.request_of(message)
            set_urgency(call, row.request)
            exchange.submit_decoded(call, message.raw[0], row.read)

    def _decode(self, call: Call, decoder: RequestDecoder, message: RequestMessage) -> InferRequest:
        del call
        return decoder.decode(message)

    def timeout_ns(self, service: ServiceBase, body: bytes) -> int | None:
        """Return the parameter `timeout` of a request that has to wait before it is submitted."""
        if _TIMEOUT not in body:
            return None
        try:
            return _codec_of(service).decoder.decode(RequestMessage.read(body)).timeout_ns
        except StokerError:
            # The error is reported when the request is submitted.
            return None

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        inference: Inference = call.context
        request = (
            inference.decoded if inference.output_regions is None else inference.output_regions.write(outputs)
        )
        call.answer_bare(inference.writer.write(request, outputs))

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer each call with its row; what most answers have in common is encoded once."""
        contents, size = rows.tobytes(), rows.nbytes // len(rows)
        answers: list[bytes] = []
        for index, call in enumerate(calls):
            inference: Inference = call.context
            content = contents[index * size : (index + 1) * size]
            answer = inference.writer.write_row(inference.decoded, rows, content)
            if answer is None:
                super().complete_together(calls, rows)
                return
            answers.append(answer)
        now_ns = time.monotonic_ns()
        calls[0].service.metrics.count_scored(len(calls), len(calls))
        for call, answer in zip(calls, answers, strict=True):
            try:
                call.answer_counted(answer, now_ns)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)


_DIALECT: Final = _InferDialect()


class _RegionDialect(_InferDialect):
    """Infer requests of callers that may have tensors in shared memory."""

    __slots__ = ("_regions",)

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def serves(self, address: str) -> bool:
        return self._regions.serves(address)

    def _decode(self, call: Call, decoder: RequestDecoder, message: RequestMessage) -> InferRequest:
        request = decoder.decode(message, LimitedReader(self._regions, call.service.limits.max_body_bytes))
        call.context.output_regions = OutputRegions.find(
            self._regions, request, batched=tensors_of(call.service).batched
        )
        return request


def _codec_of(service: ServiceBase) -> _Codec:
    codec: _Codec | None = service.codecs.get(_Codec)
    if codec is None:
        tensors = tensors_of(service)
        codec = service.codecs[_Codec] = _Codec(
            RequestDecoder(service.name, tensors),
            AnswerWriter(service.name, service.version, batched=tensors.batched),
            service.signature is not None and service.signature.takes == "rows",
        )
    return codec


class InferDispatcher:
    """Finds the services for infer requests, and submits them.

    Attributes:
        max_stream_requests: How many requests of a stream run at once; the stream is not read further meanwhile.
    """

    max_stream_requests = 64

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._read = RequestReader().read
        self._region_dialect = None if gateway.regions is None else _RegionDialect(gateway.regions)

    def check_key(self, authorization: bytes) -> StokerError | None:
        """The error for a caller whose key is no model's: the message need not be sent."""
        # Not the defaults alone: a model may be served only under its labels.
        services = list(self._gateway.directory.all_services)
        for service in services:
            if service.access.allows(authorization):
                return None
        if not services:
            return None
        error = services[0].access.refusal(authorization, BEARER_METADATA)
        if len({service.name for service in services}) == 1:
            services[0].count_refusal(error)
        return error

    def score(self, inference: Inference, content: bytes) -> Call | PiecewiseInference | WaitingInference:
        """Hand a message to the service that it is for."""
        call = inference.call
        inference.request = request = self._read(content)
        service, caller = self.find_plain(request, call.authorization) or self.find(request, call)
        try:
            if len(content) > LARGE_BODY_BYTES:
                find_caller = partial(identify_caller, service, call.authorization, call.address)
                inference.cover(Allowance(self._gateway.bodies, find_caller), len(content))
            deadline_ns = call.deadline_ns()
            options = None
            if caller is not DEFAULT or TIER_HEADER in call.head.metadata:
                options = read_call_options(caller, call.head.metadata)
            if service.facts.framework == "script" and service.signature is None and service.on_demand:
                # Only once it is loaded is it known whether its answer comes in pieces.
                return WaitingInference(
                    self._score_when_loaded(inference, content, service, caller, deadline_ns)
                )
            if service.script is not None and service.script.yields:
                return self._in_pieces(inference, service, options or CallOptions(caller))
        except StokerError as error:
            self._gateway.report_refusal(service, call.headers(), error)
            raise
        near = self._region_dialect
        dialect = _DIALECT if near is None or not near.serves(call.address) else near
        scored = service.score_soon(content, call.ids, inference, dialect)
        scored.context = inference
        if deadline_ns is not None:
            scored.deadline_ns = min(scored.deadline_ns, deadline_ns)
        if options is not None:
            options.apply_to(scored)
        return scored

    async def _score_when_loaded(
        self,
        inference: Inference,
        content: bytes,
        service: Service,
        caller: CallerTerms,
        deadline_ns: int | None,
    ) -> None:
        assert service.on_demand is not None, "others are not waited for"
        left_ns = service.limits.timeout_ns
        if deadline_ns is not None:
            left_ns = min(left_ns, max(0, deadline_ns - time.monotonic_ns()))
        with service.on_demand.lease():
            try:
                await service.on_demand.load(left_ns, caller.name)
            except StokerError as error:
                self._gateway.report_refusal(service, inference.call.headers(), error)
                inference.refuse(error.with_traceback(None))
                return
            inference.start(self, content)
            # It is submitted at the end of this turn of the loop.
            await asyncio.sleep(0)

    def _in_pieces(self, inference: Inference, service: Service, options: CallOptions) -> PiecewiseInference:
        assert inference.request is not None, "read before the service was found"
        signature = service.signature
        sequences = signature is not None and signature.sequences
        request = PieceRequest.read(service.name, inference.request, sequences=sequences)
        if len(request.body) > service.limits.max_body_bytes:
            raise service.too_large()
        inference.owner.begin_pieces(inference)
        return PiecewiseInference(inference, service, request, options, self._gateway.open_streams())

    def find_plain(self, request: ModelReference, authorization: bytes) -> tuple[Service, CallerTerms] | None:
        """Return the service for a request that names no version of an undivided model, with a key; most are such."""
        gateway, name = self._gateway, request.model_name
        service = gateway.directory.services.get(name)
        if (
            service is None
            or request.model_version
            or (caller := service.access.holder(authorization)) is None
            or gateway.directory.split_of(service) is not None
        ):
            return None
        return service, caller

    def find(self, request: ModelReference, call: RpcCall) -> tuple[Service, CallerTerms]:
        """Return the service for a request, and the caller."""
        error = self.check_key(call.authorization)
        if error is not None:
            raise error
        service = self._gateway.directory.find(request.model_name, request.model_version or None)
        if not request.model_version and self._gateway.directory.split_of(service) is not None:
            service = self._gateway.directory.choose_version(service, call.headers())
        return self.authorize(service, call)

    def authorize(self, service: Service, call: RpcCall) -> tuple[Service, CallerTerms]:
        """Check the caller's key for a service; return both."""
        try:
            return service, service.access.check(call.authorization, BEARER_METADATA)
        except StokerError as refused:
            self._gateway.report_refusal(service, call.headers(), refused)
            raise


class InferCall(UnaryCall, InferenceOwner):
    """A call with one inference; its method's `answer` is a `Dispatcher`."""

    __slots__ = ("_inference",)

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        self._inference: Inference | None = None
        super().__init__(connection, stream, head, method)

    def check(self) -> None:
        """Refuse a caller without a key before the rest of the message is sent."""
        if self._inference is None:
            super().check()

    def run(self, content: bytes) -> None:
        """Score a message."""
        reservation = None
        if self._message is not None:
            reservation = self._message.reservation
            self._message = None
        self._inference = inference = Inference(self, self, reservation)
        inference.start(self.method.answer, content)
        if self.done:
            self._inference = None

    def send_answer(self, inference: Inference, content: bytes) -> None:
        """Send the answer."""
        del inference
        self._inference = None
        self.answer(content)

    def send_error(self, inference: Inference, fields: Fields, text: str) -> None:
        """End with the error."""
        del inference, text
        self._inference = None
        self.end_with(fields)

    def abandon(self) -> None:
        """Abandon the inference."""
        super().abandon()
        if self._inference is not None:
            self._inference.abandon()
            self._inference = None


_UNREAD_BYTES: Final = 1 << 16
"""While so many bytes of pieces wait for the caller, no more are read from scripts."""


class _Slot:
    """The place of an answer among those of its stream."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: bytes | None = None


class InferStream(StreamedCall, InferenceOwner):
    """A stream of infer requests: scored side by side, answered in their order.

    Answers that come in pieces have no place in that order: each piece is sent when it arrives.
    """

    __slots__ = ("_drained", "_in_pieces", "_slots", "_slots_of")

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        self._slots: deque[_Slot] = deque()
        self._slots_of: dict[Inference, _Slot] = {}
        self._in_pieces: set[Inference] = set()
        self._drained: asyncio.Event | None = None
        super().__init__(connection, stream, head, method)

    @property
    def busy(self) -> bool:
        """Whether as many requests are under way as are allowed."""
        under_way = len(self._slots) + len(self._in_pieces)
        return under_way >= self.method.answer.max_stream_requests or super().busy

    @property
    def complete(self) -> bool:
        """Whether every request has been answered."""
        return not self._slots and not self._in_pieces

    def handle(self, item: Message | StokerError) -> None:
        """Score a request, or answer with its error."""
        inference = Inference(self, self, item.reservation if isinstance(item, Message) else None)
        place = _Slot()
        self._slots.append(place)
        self._slots_of[inference] = place
        if isinstance(item, Message):
            inference.start(self.method.answer, item.content)
        else:
            inference.refuse(item)

    def begin_pieces(self, inference: Inference) -> None:
        """Let later requests be answered before this one."""
        self._slots.remove(self._slots_of.pop(inference))
        self._in_pieces.add(inference)

    def send_piece(self, inference: Inference, content: bytes) -> None:
        """Send a piece."""
        if inference in self._in_pieces:
            self.send(content)

    async def drain(self) -> None:
        """Wait until the caller has taken most of what was sent."""
        while self._stream.queued_bytes > _UNREAD_BYTES and not self.done:
            self._drained = self._drained or asyncio.Event()
            self._drained.clear()
            await self._drained.wait()

    def drained(self) -> None:
        """Continue with pieces, and handle further messages."""
        if self._drained is not None:
            self._drained.set()
        super().drained()

    def send_answer(self, inference: Inference, content: bytes) -> None:
        """Send an answer, in its turn."""
        self._put(inference, stream_answer(content) if content else b"")

    def send_error(self, inference: Inference, fields: Fields, text: str) -> None:
        """Answer with an error, in its turn."""
        request = inference.request
        named = None
        if request is not None:
            named = ModelInferResponse(model_name=cut(request.model_name), id=request.id)
            if inference in self._in_pieces:
                _add_error_parameters(named, dict(fields))
        answer = ModelStreamInferResponse(error_message=text, infer_response=named)
        self._put(inference, answer.SerializeToString())

    def _put(self, inference: Inference, answer: bytes) -> None:
        if inference in self._in_pieces:
            self._in_pieces.discard(inference)
            if answer:
                self.send(answer)
            self.advance()
            return
        place = self._slots_of.pop(inference, None)
        if place is None or self.done:
            return
        place.answer = answer
        slots = self._slots
        while slots and slots[0].answer is not None:
            self.send(slots.popleft().answer or b"")
        self.advance()

    def abandon(self) -> None:
        """Abandon all inferences."""
        super().abandon()
        for inference in (*self._slots_of, *self._in_pieces):
            inference.abandon()


def _add_error_parameters(named: Any, fields: Mapping[bytes, bytes]) -> None:
    """Put the error's fields into parameters, as the stream goes on without trailers, and mark the last answer."""
    named.parameters[IS_FINAL].bool_param = True
    for name in (b"error-code", b"error-id"):
        if name in fields:
            named.parameters[name.decode().replace("-", "_")].string_param = fields[name].decode("latin-1")
