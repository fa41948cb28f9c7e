"""Infer requests of gRPC: a dialect of scoring, who asks, and the unary calls that make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from stoker.errors import StokerError
from stoker.gateway.grpc.calls import BEARER_METADATA, Line, Method, RpcCall, fault
from stoker.gateway.grpc.heads import refusal_fields, shown
from stoker.gateway.grpc.requests import RequestDecoder, RequestMessage
from stoker.gateway.grpc.responses import AnswerWriter
from stoker.gateway.grpc.unary import UnaryCall
from stoker.gateway.http.answers import split_lines
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance, Caller
from stoker.gateway.protocols.infer_dialect import tensors_of
from stoker.gateway.scoring.askers import TIER_HEADER, asker_of
from stoker.gateway.scoring.callers import caller_of
from stoker.gateway.scoring.tensor_dialect import TensorDialect, submit_tensors
from stoker.keys.callers import DEFAULT

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.heads import CallHead
    from stoker.gateway.grpc.room import Hold
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call, Scorer
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms
    from stoker.wire.envelope import RequestHead
    from stoker.wire.http2.fields import Fields
    from stoker.wire.http2.stream import Stream
    from stoker.wire.oip_requests import InferRequest

__all__ = ["Asker", "InferCall", "Inquiry", "Scoring"]

_SCORED: Final = 200
_TIMEOUT: Final = b"timeout"
_REFUSAL: Final = frozenset({b"grpc-status", b"grpc-message", b"error-code", b"retry-after", b"error-id"})


class Asker(Protocol):
    """What asks: a call, or a stream of which one message asks."""

    def answered(self, inquiry: Inquiry, content: bytes) -> None:
        """Take an answer, a `ModelInferResponse`."""

    def refused(self, inquiry: Inquiry, fields: Fields, text: str) -> None:
        """Take an error: the fields that would end a call with it, and what it says."""


class Inquiry:
    """One infer request, from its message to its answer.

    Attributes:
        call: The call or stream that it came on.
        request: What its message says without the model; None until it has been read.
        decoded: What it says to the model; set when it is submitted.
        writer: What writes its answer; set then too.
    """

    __slots__ = ("_allowance", "_asker", "_hold", "_scored", "call", "decoded", "request", "writer")

    decoded: InferRequest
    writer: AnswerWriter

    def __init__(self, call: RpcCall, asker: Asker, hold: Hold | None) -> None:
        """Begin.

        Args:
            call: The call or stream that it came on.
            asker: Who is told the answer.
            hold: The room that its message has taken while it arrived, which is given back with the answer.
        """
        self.call = call
        self._hold = hold
        self.request: RequestMessage | None = None
        self._asker = asker
        self._scored: Call | None = None
        self._allowance: Allowance | None = None

    def ask(self, scoring: Scoring, content: bytes) -> None:
        """Score a message; its asker is told once, at once or later."""
        try:
            self._scored = scoring.score(self, content)
        except StokerError as error:
            self.refuse(error.with_traceback(None))
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            self.refuse(fault(error, self.call, "" if self.request is None else self.request.model_name))

    def cover(self, allowance: Allowance, size_bytes: int) -> None:
        """Hold room for a large message until it is answered: as its caller's now, and no more as the connection's.

        Raises:
            Overloaded: There is none.
        """
        self._let_go()
        self._allowance = allowance
        allowance.cover(size_bytes)

    def refuse(self, error: StokerError) -> None:
        """Tell the asker of an error."""
        self._let_go()
        self._asker.refused(self, refusal_fields(error), shown(error))

    def abandon(self) -> None:
        """Its caller has gone."""
        scored = self._scored
        self._end()
        if scored is not None:
            scored.abandon()

    def __call__(self, status: int, lines: bytes, body: bytes) -> None:
        """Take what a scored call answers."""
        self._end()
        if status == _SCORED:
            self._asker.answered(self, body)
        else:
            fields = [field for field in split_lines(lines) if field[0] in _REFUSAL]
            self._asker.refused(self, list(dict(fields).items()), body.decode())

    def _let_go(self) -> None:
        if self._allowance is not None:
            self._allowance.release()
            self._allowance = None
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _end(self) -> None:
        """Forget what has been scored: the two know each other, and only a collection of garbage would free them."""
        self._let_go()
        self._scored = None


class _Codec(NamedTuple):
    """What reads the requests of a model and writes its answers."""

    decoder: RequestDecoder
    writer: AnswerWriter


class _GrpcDialect(TensorDialect):
    """The requests of one `Inquiry` each, which `Call.asked` is."""

    __slots__ = ()

    def reads_long(self, service: Scorer, body: bytes, head: RequestHead | None) -> bool:
        """Raw contents stay where they are; typed ones are bounded."""
        del service, body, head
        return False

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode the request and queue its tensors."""
        del body, head
        inquiry: Inquiry = call.asked
        codec = _codec_of(call.service)
        assert inquiry.request is not None, "read before the service was found"
        inquiry.decoded = decoded = codec.decoder.decode(inquiry.request)
        inquiry.writer = codec.writer
        if decoded.timeout_ns is not None or decoded.tier is not None:
            call.shorten(decoded.timeout_ns)
            call.ask_for(decoded.tier)
        submit_tensors(call, exchange, decoded.inputs)

    def timeout_ns(self, service: Scorer, body: bytes) -> int | None:
        """Return the parameter `timeout` of a request that has to wait before it is submitted."""
        if _TIMEOUT not in body:
            return None
        try:
            return _codec_of(service).decoder.decode(RequestMessage.read(body)).timeout_ns
        except StokerError:
            # Its caller is told when it is submitted.
            return None

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return the fields that end a call, as lines, and what the error says."""
        lines = b"".join(b"%b: %b\r\n" % field for field in refusal_fields(error))
        return error.status, lines, shown(error).encode()

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        inquiry: Inquiry = call.asked
        call.answer_bare(inquiry.writer.write(inquiry.decoded, outputs))


_DIALECT: Final = _GrpcDialect()


def _codec_of(service: Scorer) -> _Codec:
    codec: _Codec | None = service.codecs.get(_Codec)
    if codec is None:
        tensors = tensors_of(service)
        codec = service.codecs[_Codec] = _Codec(
            RequestDecoder(service.name, tensors),
            AnswerWriter(service.name, service.version, batched=tensors.batched),
        )
    return codec


class Scoring:
    """Finds the services that inquiries are for.

    Args:
        gateway: The frontend's services.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

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

    def score(self, inquiry: Inquiry, content: bytes) -> Call:
        """Hand a message to the service that it is for.

        Raises:
            StokerError: It is refused.
        """
        call = inquiry.call
        inquiry.request = request = RequestMessage.read(content)
        service, caller = self._plain(request, call.authorization) or self._find(request, call)
        try:
            if len(content) > LARGE_BODY_BYTES:
                inquiry.cover(Allowance(self._gateway.bodies, self._caller(service, call)), len(content))
            deadline_ns = call.deadline_ns()
            asker = None
            if caller is not DEFAULT or TIER_HEADER in call.head.metadata:
                asker = asker_of(caller, call.head.metadata)
        except StokerError as error:
            service.count_refusal(error)
            raise
        scored = service.score_soon(content, call.ids, inquiry, _DIALECT)
        scored.asked = inquiry
        if deadline_ns is not None:
            scored.deadline_ns = min(scored.deadline_ns, deadline_ns)
        if asker is not None:
            asker.put_on(scored)
        return scored

    def _plain(self, request: RequestMessage, authorization: bytes) -> tuple[Service, CallerTerms] | None:
        """The service for a request that names no version of an undivided model, with a key; most are such."""
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

    def _find(self, request: RequestMessage, call: RpcCall) -> tuple[Service, CallerTerms]:
        error = self.check_key(call.authorization)
        if error is not None:
            raise error
        service = self._gateway.find(request.model_name, request.model_version or None)
        if not request.model_version and self._gateway.split_of(service) is not None:
            service = self._gateway.by_weight(service, call.headers())
        try:
            return service, service.access.check(call.authorization, BEARER_METADATA)
        except StokerError as refused:
            service.count_refusal(refused)
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
