"""TorchServe's services over gRPC: predictions, whole or piece by piece, and the management of models."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from stoker.errors import InvalidInput, MalformedBody, NotSupported, StokerError, quoted
from stoker.gateway.grpc.calls import BEARER_METADATA, CallConnection, CoroutineCall, Method, RpcCall
from stoker.gateway.grpc.inference import script_head
from stoker.gateway.grpc.messages import INFERENCE_APIS, MANAGEMENT_APIS, TORCHSERVE, message
from stoker.gateway.http.requests import Requester
from stoker.gateway.http.responses import Answer
from stoker.gateway.protocols.endpoint import ScoringRequest, begin_scoring
from stoker.gateway.protocols.pieces import piecewise
from stoker.gateway.protocols.torchserve import HEALTHY, Predictions, find_version, to_json
from stoker.gateway.protocols.torchserve_management import Management
from stoker.gateway.scoring.call_options import CallOptions, read_call_options

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.infer import InferDispatcher
    from stoker.gateway.grpc.metadata import CallHead
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms
    from stoker.wire.http2.streams import Stream

_Request: Final = message("PredictionsRequest", f"{TORCHSERVE}.inference")
_Response: Final = message("PredictionResponse", f"{TORCHSERVE}.inference")
_Health: Final = message("TorchServeHealthResponse", f"{TORCHSERVE}.inference")
_Managed: Final = message("ManagementResponse", f"{TORCHSERVE}.management")
_OK: Final = 200
_UNREAD_BYTES: Final = 1 << 16
"""While so many bytes of pieces wait for the caller, no more are read from scripts."""
_NAME: Final = re.compile(r'[^"\r\n]{1,200}')
_BODY: Final = "body"
_NAMES: Final = ("model_name", "model_version")


class PredictionCall(CoroutineCall):
    """A call for one prediction; its method's `answer` is a method of `Predictor`."""

    __slots__ = ("_drained",)

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        self._drained = asyncio.Event()
        super().__init__(connection, stream, head, method)
        stream.notifies_drained = True

    def drained(self) -> None:
        """Go on with pieces."""
        self._drained.set()

    async def send_piece(self, prediction: bytes) -> None:
        """Send a piece, and wait until the caller has taken most of what was sent."""
        self.send(_Response(prediction=prediction).SerializeToString())
        while self._stream.queued_bytes > _UNREAD_BYTES and not self.done:
            self._drained.clear()
            await self._drained.wait()

    def answer(self, message: bytes) -> None:
        """Answer with one message, and end; after pieces there is none."""
        if self._stream.queue is None:
            super().answer(message)
        else:
            self.succeed()


class _Scored(Predictions):
    """Predictions that keep their error, for the call that waits to raise it."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StokerError | None = None

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        self.error = error
        return super().refusal(error)


class _ScriptError(StokerError):
    """The error of a script, with its status and code."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.body.decode(errors="replace"))
        self.status = answer.status  # type: ignore[misc]  # the class attribute is the default


class Predictor:
    """Answers Predictions, or StreamPredictions if it is made so."""

    def __init__(self, gateway: Gateway, scoring: InferDispatcher, *, streams: bool = False) -> None:
        self._gateway, self._scoring, self._streams = gateway, scoring, streams
        self.check_key = scoring.check_key

    async def __call__(self, content: bytes, call: PredictionCall) -> bytes:
        """Score a `PredictionsRequest`; returns the last message, empty after pieces."""
        try:
            request = _Request.FromString(content)
        except DecodeError as error:
            raise MalformedBody(f"the message cannot be read: {error}") from None
        service, caller = self._find(request, call)
        if service.signature is None and service.on_demand is not None:
            with service.on_demand.lease():
                await service.learn_signature(caller.name)
                return await self._predict(service, request, caller, call)
        return await self._predict(service, request, caller, call)

    async def _predict(
        self, service: Service, request: Any, caller: CallerTerms, call: PredictionCall
    ) -> bytes:
        try:
            scoring, dialect = self._read(service, request, caller, call)
        except StokerError as error:
            self._gateway.report_refusal(service, call.headers(), error)
            raise
        if service.script is not None and service.script.yields:
            return await self._send_pieces(service, scoring, call)
        scored, answered = begin_scoring(service, scoring)
        try:
            answer = await answered
        finally:
            scored.abandon()
        return _prediction(answer, dialect)

    def _find(self, request: Any, call: RpcCall) -> tuple[Service, CallerTerms]:
        error = self.check_key(call.authorization)
        if error is not None:
            raise error
        service = find_version(self._gateway, request.model_name, request.model_version or None)
        if not request.model_version:
            service = self._gateway.directory.choose_version(service, call.headers())
        return self._scoring.authorize(service, call)

    def _read(
        self, service: Service, request: Any, caller: CallerTerms, call: RpcCall
    ) -> tuple[ScoringRequest, _Scored]:
        body, content_type = _body(service, dict(request.input))
        if len(body) > service.limits.max_body_bytes:
            raise service.too_large()
        if service.script is not None and service.script.yields and not self._streams:
            raise NotSupported(f"'{service.name}' yields its answer piece by piece: call StreamPredictions")
        options = read_call_options(caller, call.head.metadata) or CallOptions(caller)
        received_ns, deadline_ns = time.monotonic_ns(), call.deadline_ns()
        if deadline_ns is not None:
            left_ns = deadline_ns - received_ns
            options = options._replace(timeout_ns=min(left_ns, options.timeout_ns or left_ns))
        head = None
        if service.dialect.wants_head:
            head = script_head(call, f"/predictions/{service.name}", content_type)
        dialect = _Scored()
        return ScoringRequest(body, call.ids, head, received_ns, dialect, options), dialect

    async def _send_pieces(self, service: Service, scoring: ScoringRequest, call: PredictionCall) -> bytes:
        dialect = scoring.dialect
        assert isinstance(dialect, _Scored), "made so"
        with piecewise(service, scoring, self._gateway.open_streams()) as pieces:
            if await pieces.begin():
                while (piece := await pieces.next()) is not None:
                    await call.send_piece(piece)
            return _prediction(await pieces.end(), dialect)


def _prediction(answer: Answer, dialect: _Scored) -> bytes:
    if dialect.error is not None:
        raise dialect.error
    if answer.status != _OK:
        raise _ScriptError(answer)
    content: bytes = _Response(prediction=answer.body).SerializeToString()
    return content


def _body(service: Service, fields: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Return the fields of a request as the body of one over HTTP, and its content type."""
    if not fields:
        raise MalformedBody("the request has no input")
    if service.script is None or service.script.kind != "raw" or fields.keys() == {_BODY}:
        if len(fields) > 1:
            raise InvalidInput(f"'{service.name}' takes one input: its body, whatever its name")
        (body,) = fields.values()
        kind = "application/json" if service.script is not None and service.script.kind != "raw" else ""
        return body, kind
    boundary = uuid.uuid4().hex
    parts = []
    for name, content in fields.items():
        if not _NAME.fullmatch(name):
            raise MalformedBody(f"{quoted(name)} cannot be the name of an input")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        parts += [head.encode(), content, b"\r\n"]
    return b"".join((*parts, f"--{boundary}--\r\n".encode())), f"multipart/form-data; boundary={boundary}"


def other_methods(gateway: Gateway) -> dict[str, tuple[Any, Callable[[Any, RpcCall], Awaitable[Any]]]]:
    """Return the methods for health and management by path: the class of the request, and what answers it."""
    management = Management(gateway)
    answers: dict[str, Callable[[Requester, Any], Awaitable[Any]]] = {
        "DescribeModel": lambda requester, request: management.describe(
            requester, *_version(request), _given(request, *_NAMES)
        ),
        "ListModels": lambda requester, request: management.models(requester, _given(request)),
        "RegisterModel": lambda requester, request: management.register(requester, _given(request)),
        "ScaleWorker": lambda requester, request: management.scale(
            requester, *_version(request), _given(request, *_NAMES)
        ),
        "SetDefault": lambda requester, request: management.set_default(
            requester, request.model_name, request.model_version
        ),
        "UnregisterModel": lambda requester, request: management.unregister(requester, *_version(request)),
    }

    async def ping(_: Any, __: RpcCall) -> Any:
        gateway.check_ready()
        return _Health(health=HEALTHY.decode())

    async def manage(answer: Callable[[Requester, Any], Awaitable[Any]], request: Any, call: RpcCall) -> Any:
        requester = Requester(call.authorization, call.address, sent_as=BEARER_METADATA)
        answered = await answer(requester, request)
        return _Managed(msg=answered if isinstance(answered, str) else to_json(answered).decode())

    methods: dict[str, tuple[Any, Callable[[Any, RpcCall], Awaitable[Any]]]] = {
        f"/{MANAGEMENT_APIS}/{name}": (
            message(f"{name}Request", f"{TORCHSERVE}.management"),
            partial(manage, answer),
        )
        for name, answer in answers.items()
    }
    return {**methods, f"/{INFERENCE_APIS}/Ping": (message("Empty", "google.protobuf"), ping)}


def _version(request: Any) -> tuple[str, str | None]:
    return request.model_name, request.model_version or None


def _given(request: Any, *left_out: str) -> dict[str, str]:
    """Return the fields that are set, as the parameters of a query have them."""
    return {
        field.name: str(value).lower() if isinstance(value, bool) else str(value)
        for field, value in request.ListFields()
        if field.name not in left_out
    }
