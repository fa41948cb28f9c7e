"""Infer requests of gRPC: a dialect of scoring, how their models are found, and the unary calls that make them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from stoker.echo import cut
from stoker.errors import InvalidInput, NotSupported, StokerError
from stoker.gateway.grpc.calls import BEARER_METADATA, Line, Method, RpcCall, fault
from stoker.gateway.grpc.contents import fill_typed
from stoker.gateway.grpc.heads import refusal_fields, shown
from stoker.gateway.grpc.inquiry import Inquiry
from stoker.gateway.grpc.messages import (
    SERVICE,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from stoker.gateway.grpc.request_messages import RequestMessage, RequestReader
from stoker.gateway.grpc.requests import FINAL_ASKED, RequestDecoder
from stoker.gateway.grpc.responses import IS_FINAL, AnswerWriter
from stoker.gateway.grpc.unary import UnaryCall
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance, Caller
from stoker.gateway.http.responses import told_error
from stoker.gateway.protocols.endpoint import ScoringRequest, piecewise
from stoker.gateway.protocols.infer import submit_request, tell_urgency, tensors_of
from stoker.gateway.regions.regions import Places, Reader
from stoker.gateway.scoring.askers import TIER_HEADER, Asker, asker_of
from stoker.gateway.scoring.callers import caller_of
from stoker.gateway.scoring.tensor_dialect import TensorDialect
from stoker.keys.callers import DEFAULT
from stoker.wire.envelope import RequestHead
from stoker.wire.oip_tensors import DATATYPES, datatype_of, to_raw
from stoker.wire.piece_tensors import body_of, outputs_of, tensors_like

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.heads import CallHead
    from stoker.gateway.http.responses import Answer
    from stoker.gateway.regions.regions import Regions
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call, Scorer
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.scoring.streams import ScriptStreams
    from stoker.keys.callers import CallerTerms
    from stoker.sequences import SequenceStep
    from stoker.wire.http2.fields import Fields
    from stoker.wire.http2.stream import Stream
    from stoker.wire.oip_requests import InferRequest

__all__ = ["GrpcDialect", "InferCall", "InferInPieces", "Named", "PieceRequest", "Scoring"]


# Infer requests to scripts that yield: each piece is an answer of its stream, as of Triton's decoupled models.


_OK: Final = 200
_MAX_FORM_BYTES: Final = 1 << 20
_MAX_TEXT_CHARS: Final = 1024
_DTYPES: Final = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_PATH: Final = f"/{SERVICE}/ModelStreamInfer"
_HOP_FIELDS: Final = (b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")


class PieceRequest(NamedTuple):
    """What a `ModelInferRequest` says to a script that yields.

    Attributes:
        id: What the caller calls it, or empty.
        body: The body that the script gets.
        outputs: What is wanted of each piece.
        raw: Whether outputs are to be raw.
        marks_end: Whether an answer without outputs is to say that there are no more.
        timeout_ns: How long the caller waits for the first piece, or None.
        tier: Which tier they ask for, or None.
        sequence: Of which sequence it is, or None.
    """

    id: str
    body: bytes
    outputs: tuple[str, ...]
    raw: bool
    marks_end: bool
    timeout_ns: int | None
    tier: int | None
    sequence: SequenceStep | None

    @classmethod
    def read(cls, model: str, request: RequestMessage, *, sequences: bool = False) -> PieceRequest:
        """Read a request.

        Args:
            model: The model's name.
            request: The request.
            sequences: Whether the script is given the state of a sequence.

        Raises:
            StokerError: It cannot be read, or makes no body.
        """
        message = request.parsed(_MAX_FORM_BYTES)
        tensors = tensors_like(
            [(given.name, _dtype(model, given)) for given in message.inputs],
            [output.name for output in message.outputs],
            sequences=sequences,
        )
        decoded = RequestDecoder(model, tensors).decode_parsed(request, message)
        if any(wanted.classes for wanted in decoded.wanted):
            raise InvalidInput(f"'{model}' yields pieces: they have no classes")
        return cls(
            request.id,
            body_of(model, decoded.inputs),
            tuple(wanted.name for wanted in decoded.wanted),
            any(wanted.binary for wanted in decoded.wanted),
            message.parameters[FINAL_ASKED].bool_param if FINAL_ASKED in message.parameters else False,
            decoded.timeout_ns,
            decoded.tier,
            decoded.sequence,
        )


def _dtype(model: str, given: Any) -> str:
    dtype = _DTYPES.get(given.datatype)
    if dtype is None:
        raise InvalidInput(f"input '{cut(given.name)}' for model '{model}' has no datatype that is known")
    return dtype


class InferInPieces:
    """One request that is being answered; what it takes is let go when it has been, or is abandoned.

    Args:
        inquiry: What has asked, and takes the pieces.
        service: Whose script yields.
        request: The request.
        asker: Whose it is, and what they say of their patience.
        streams: Where the script's pieces come in.
    """

    def __init__(
        self, inquiry: Inquiry, service: Service, request: PieceRequest, asker: Asker, streams: ScriptStreams
    ) -> None:
        self._inquiry, self._service, self._request = inquiry, service, request
        waits_ns = [wait_ns for wait_ns in (asker.timeout_ns, request.timeout_ns) if wait_ns is not None]
        tier = asker.tier if request.tier is None else request.tier
        self._asker = asker._replace(
            timeout_ns=min(waits_ns, default=None), tier=tier, sequence=request.sequence or asker.sequence
        )
        self._task = asyncio.ensure_future(self._run(streams))

    def abandon(self) -> None:
        """Its caller has gone: the generator is closed at its next piece."""
        self._task.cancel()

    async def _run(self, streams: ScriptStreams) -> None:
        inquiry = self._inquiry
        try:
            end = await self._send(streams)
            if end.status == _OK:
                last = self._message({}).SerializeToString() if self._request.marks_end else b""
                inquiry(_OK, b"", last)
            else:
                inquiry(end.status, *_told(end))
        except StokerError as error:
            inquiry.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            inquiry.refuse(fault(error, inquiry.call, self._service.name))

    async def _send(self, streams: ScriptStreams) -> Answer:
        """Send the pieces; return what became of the answer."""
        inquiry, names = self._inquiry, self._request.outputs
        head, received_ns = _head(inquiry.call), time.monotonic_ns()
        scoring = ScoringRequest(self._request.body, inquiry.call.ids, head, received_ns, asker=self._asker)
        with piecewise(self._service, scoring, streams) as pieces:
            if await pieces.begin():
                while (piece := await pieces.next()) is not None:
                    inquiry.piece(self._in_stream(outputs_of(piece, names)))
                    await inquiry.room()
            return await pieces.end()

    def _in_stream(self, outputs: Mapping[str, np.ndarray]) -> bytes:
        """An answer behind which others come."""
        response = self._message(outputs)
        response.parameters[IS_FINAL].bool_param = False
        content: bytes = ModelStreamInferResponse(infer_response=response).SerializeToString()
        return content

    def _message(self, outputs: Mapping[str, np.ndarray]) -> Any:
        response = ModelInferResponse(
            model_name=self._service.name, model_version=self._service.version, id=self._request.id
        )
        for name, array in outputs.items():
            output = response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            if self._request.raw:
                response.raw_output_contents.append(to_raw(array))
            else:
                fill_typed(output.contents, array)
        return response


def _head(call: RpcCall) -> RequestHead:
    """What the script may see of a call: its metadata as headers, with the content type of the body that it gets."""
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in call.headers().items()
        if name not in _HOP_FIELDS
    ]
    headers.append(("content-type", "application/json"))
    return RequestHead("POST", _PATH, "", headers, call.address)


def _told(answer: Answer) -> tuple[bytes, bytes]:
    """Fields, as lines, and text of an error: from the JSON of Azure's endpoint, or as a script has written it."""
    told = told_error(answer.body)
    if told is None:
        return answer.lines, answer.body.decode(errors="replace")[:_MAX_TEXT_CHARS].encode()
    text, code, error_id = told["message"], told.get("code", ""), told.get("error_id", "")
    lines = b"error-code: %b\r\n" % str(code).encode() + (
        b"error-id: %b\r\n" % str(error_id).encode() if error_id else b""
    )
    return answer.lines + lines, str(text).encode()


_TIMEOUT: Final = b"timeout"


class Named(Protocol):
    """A request that names a model, and perhaps a version, by its number."""

    @property
    def model_name(self) -> str:
        """The name."""

    @property
    def model_version(self) -> str:
        """The number; empty for none."""


class _Codec(NamedTuple):
    """What reads the requests of a model and writes its answers."""

    decoder: RequestDecoder
    writer: AnswerWriter
    has_rows: bool


class GrpcDialect(TensorDialect):
    """Requests whose tensors are read where they lie, and whose errors are the fields that end a call."""

    __slots__ = ()

    def reads_long(self, service: Scorer, body: bytes, head: RequestHead | None) -> bool:
        """Raw contents stay where they are; typed ones are bounded."""
        del service, body, head
        return False

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return the fields that end a call, as lines, and what the error says."""
        lines = b"".join(b"%b: %b\r\n" % field for field in refusal_fields(error))
        return error.status, lines, shown(error).encode()


class _InferDialect(GrpcDialect):
    """The requests of one `Inquiry` each, which `Call.asked` is."""

    __slots__ = ()

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode the request and queue its tensors."""
        del body, head
        inquiry: Inquiry = call.asked
        codec, message = _codec_of(call.service), inquiry.request
        assert message is not None, "read before the service was found"
        inquiry.writer, inquiry.places = codec.writer, None
        row = codec.decoder.plain_row(message) if codec.has_rows else None
        if row is None:
            inquiry.decoded = decoded = self._decode(call, codec.decoder, message)
            submit_request(call, exchange, decoded)
        else:
            inquiry.decoded = row.request_of(message)
            tell_urgency(call, row.request)
            exchange.submit_decoded(call, message.raw[0], row.read)

    def _decode(self, call: Call, decoder: RequestDecoder, message: RequestMessage) -> InferRequest:
        del call
        return decoder.decode(message)

    def timeout_ns(self, service: Scorer, body: bytes) -> int | None:
        """Return the parameter `timeout` of a request that has to wait before it is submitted."""
        if _TIMEOUT not in body:
            return None
        try:
            return _codec_of(service).decoder.decode(RequestMessage.read(body)).timeout_ns
        except StokerError:
            # Its caller is told when it is submitted.
            return None

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        inquiry: Inquiry = call.asked
        request = inquiry.decoded if inquiry.places is None else inquiry.places.write(outputs)
        call.answer_bare(inquiry.writer.write(request, outputs))

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer each with its row: most want it as it is, behind what all of them are told."""
        contents, size = rows.tobytes(), rows.nbytes // len(rows)
        answers: list[bytes] = []
        for index, call in enumerate(calls):
            inquiry: Inquiry = call.asked
            content = contents[index * size : (index + 1) * size]
            answer = inquiry.writer.write_row(inquiry.decoded, rows, content)
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
    """The same for callers who may have tensors in shared memory."""

    __slots__ = ("_regions",)

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def serves(self, address: str) -> bool:
        """Whether a peer at this address may use regions."""
        return self._regions.serves(address)

    def _decode(self, call: Call, decoder: RequestDecoder, message: RequestMessage) -> InferRequest:
        request = decoder.decode(message, Reader(self._regions, call.service.max_body_bytes))
        call.asked.places = Places.of(self._regions, request, batched=tensors_of(call.service).batched)
        return request


def _codec_of(service: Scorer) -> _Codec:
    codec: _Codec | None = service.codecs.get(_Codec)
    if codec is None:
        tensors = tensors_of(service)
        codec = service.codecs[_Codec] = _Codec(
            RequestDecoder(service.name, tensors),
            AnswerWriter(service.name, service.version, batched=tensors.batched),
            service.signature is not None and service.signature.takes == "rows",
        )
    return codec


class Scoring:
    """Finds the services that inquiries are for.

    Args:
        gateway: The frontend's services.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._read = RequestReader().read
        self._region_dialect = None if gateway.regions is None else _RegionDialect(gateway.regions)

    def check_key(self, authorization: bytes) -> StokerError | None:
        """The error for a caller whose key is no model's: the message need not be sent."""
        # Not the defaults alone: a model may be served only under its labels.
        services = list(self._gateway.all_services)
        for service in services:
            if service.access.allows(authorization):
                return None
        if not services:
            return None
        error = services[0].access.refusal(authorization, BEARER_METADATA)
        if len({service.name for service in services}) == 1:
            services[0].count_refusal(error)
        return error

    def score(self, inquiry: Inquiry, content: bytes) -> Call | InferInPieces:
        """Hand a message to the service that it is for.

        Raises:
            StokerError: It is refused.
        """
        call = inquiry.call
        inquiry.request = request = self._read(content)
        service, caller = self.plain(request, call.authorization) or self.find(request, call)
        try:
            if len(content) > LARGE_BODY_BYTES:
                inquiry.cover(Allowance(self._gateway.bodies, self._caller(service, call)), len(content))
            deadline_ns = call.deadline_ns()
            asker = None
            if caller is not DEFAULT or TIER_HEADER in call.head.metadata:
                asker = asker_of(caller, call.head.metadata)
            if service.script is not None and service.script.yields:
                return self._in_pieces(inquiry, service, asker or Asker(caller))
        except StokerError as error:
            self._gateway.note_refusal(service, call.headers(), error)
            raise
        near = self._region_dialect
        dialect = _DIALECT if near is None or not near.serves(call.address) else near
        scored = service.score_soon(content, call.ids, inquiry, dialect)
        scored.asked = inquiry
        if deadline_ns is not None:
            scored.deadline_ns = min(scored.deadline_ns, deadline_ns)
        if asker is not None:
            asker.put_on(scored)
        return scored

    def _in_pieces(self, inquiry: Inquiry, service: Service, asker: Asker) -> InferInPieces:
        assert inquiry.request is not None, "read before the service was found"
        signature = service.signature
        sequences = signature is not None and signature.sequences
        request = PieceRequest.read(service.name, inquiry.request, sequences=sequences)
        if len(request.body) > service.max_body_bytes:
            raise service.too_large()
        inquiry.begin_pieces()
        return InferInPieces(inquiry, service, request, asker, self._gateway.take_streams())

    def plain(self, request: Named, authorization: bytes) -> tuple[Service, CallerTerms] | None:
        """Return the service for a request that names no version of an undivided model, with a key; most are such."""
        gateway, name = self._gateway, request.model_name
        service = gateway.services.get(name)
        if (
            service is None
            or request.model_version
            or (caller := service.access.holder(authorization)) is None
            or gateway.split_of(service) is not None
        ):
            return None
        return service, caller

    def find(self, request: Named, call: RpcCall) -> tuple[Service, CallerTerms]:
        """Return the service that a request is for, and who asks.

        Raises:
            StokerError: There is none, or none for this caller.
        """
        error = self.check_key(call.authorization)
        if error is not None:
            raise error
        service = self._gateway.find(request.model_name, request.model_version or None)
        if not request.model_version and self._gateway.split_of(service) is not None:
            service = self._gateway.by_weight(service, call.headers())
        try:
            return service, service.access.check(call.authorization, BEARER_METADATA)
        except StokerError as refused:
            self._gateway.note_refusal(service, call.headers(), refused)
            raise

    @staticmethod
    def _caller(service: Service, call: RpcCall) -> Callable[[], Caller]:
        return lambda: caller_of(service, call.authorization, call.address)


class InferCall(UnaryCall):
    """A call that makes one inquiry. Its method answers nothing: it has the scoring."""

    __slots__ = ("_inquiry",)

    def __init__(self, line: Line, stream: Stream, head: CallHead, method: Method) -> None:
        self._inquiry: Inquiry | None = None
        super().__init__(line, stream, head, method)

    def check(self) -> None:
        """Refuse a caller without a key whose message is not whole yet: it need not be sent."""
        if self._inquiry is None and not self.done:
            error = self.method.answer.check_key(self.authorization)
            if error is not None:
                self.refuse(error)

    def run(self, content: bytes) -> None:
        """Score a message."""
        hold = None
        if self._message is not None:
            hold = self._message.hold
            self._message = None
        self._inquiry = inquiry = Inquiry(self, self, hold)
        inquiry.ask(self.method.answer, content)
        if self.done:
            self._inquiry = None

    def begin_pieces(self, inquiry: Inquiry) -> None:
        """Refuse: there is one answer."""
        name = "" if inquiry.request is None else inquiry.request.model_name
        raise NotSupported(f"'{name}' yields its answer piece by piece: call ModelStreamInfer")

    def piece(self, inquiry: Inquiry, content: bytes) -> None:
        """Take none: it has refused."""

    async def room(self) -> None:
        """Wait for nothing."""

    def answered(self, inquiry: Inquiry, content: bytes) -> None:
        """Send the answer."""
        del inquiry
        self._inquiry = None
        self.answer(content)

    def refused(self, inquiry: Inquiry, fields: Fields, text: str) -> None:
        """End with the error."""
        del inquiry, text
        self._inquiry = None
        self.end_with(fields)

    def abandon(self) -> None:
        """Give the rows up."""
        super().abandon()
        if self._inquiry is not None:
            self._inquiry.abandon()
            self._inquiry = None
