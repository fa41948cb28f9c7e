"""The steps of all endpoints: reading a body, scoring it, and sending the answer, whole or in pieces."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.types import Receive, Scope, Send

from stoker.errors import MethodNotAllowed, StokerError
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.body_budget import Allowance, Caller
from stoker.gateway.http.encodings import PIECE_BYTES, Inflater, inflater_for
from stoker.gateway.http.request_ids import RequestIds, sent_ids
from stoker.gateway.http.requests import content_encodings, content_length, request_head
from stoker.gateway.http.responses import Answer, refusal, send_answer
from stoker.gateway.scoring.call_options import CallOptions, read_call_options
from stoker.gateway.scoring.caller_identity import identify_caller
from stoker.gateway.scoring.on_demand import wait_line
from stoker.gateway.scoring.service import Service
from stoker.gateway.traffic import DEPLOYMENT_HEADER
from stoker.wire.script_requests import RequestHead

if TYPE_CHECKING:
    from stoker.gateway.later.keeping import Later
    from stoker.gateway.scoring.call import Call, Dialect

OK: Final = 200


class UnreadRequest(NamedTuple):
    """A request for a service whose body has not been read; no dialect stands for the service's own."""

    service: Service
    dialect: Dialect | None
    scope: Scope
    headers: Mapping[bytes, bytes]
    receive: Receive
    send: Send


class ScoringRequest(NamedTuple):
    """The arguments of `Service.score` for a request whose body has arrived."""

    body: bytes
    ids: RequestIds
    head: RequestHead | None
    received_ns: int
    dialect: Dialect | None = None
    options: CallOptions | None = None


class DialectEndpoint:
    """Scoring in one protocol, as a raw ASGI endpoint."""

    def __init__(
        self,
        gateway: Gateway,
        find: Callable[[Scope, Mapping[bytes, bytes]], tuple[Service, Dialect | None]],
        refuse: Callable[[StokerError], tuple[int, bytes | None]],
        compress: Callable[[bytes, bytes], Awaitable[tuple[bytes, bytes]]] | None = None,
        *,
        names_deployment: bool = False,
    ) -> None:
        """Make the endpoint.

        Args:
            find: Returns the service and the dialect for a request, given its scope and headers; if the dialect is
                None, the service's own.
            refuse: Returns status and body of an error in this protocol; no body stands for Azure's.
            compress: Compresses a body if `Accept-Encoding` allows; returns the body and a header line.
            names_deployment: Whether answers name their deployment.
        """
        self._gateway = gateway
        self._find = find
        self._refuse = refuse
        self._compress = compress
        self._names_deployment = names_deployment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        if (authorization := scope.get("stoker.authorization")) is not None:
            # Of a request whose key was checked when it arrived; scripts do not see it.
            headers[b"authorization"] = authorization
        service = None
        try:
            service, dialect = self._find(scope, headers)
            later = self._gateway.later
            unread = UnreadRequest(service, dialect, scope, headers, receive, send)
            if later is not None and b"prefer" in headers and later.is_for(service, scope, headers):
                answer = await self._keep(unread, later)
            else:
                answer = await self._answer_when_known(unread)
        except StokerError as error:
            if service is not None:
                self._gateway.report_refusal(service, headers, error)
            answer = refusal(error, headers, *self._refuse(error))
        if answer is not None:
            if self._names_deployment:
                answer = with_deployment(answer, service, self._gateway)
            await send_answer(send, await self._finish(answer, headers))

    async def _answer_when_known(self, unread: UnreadRequest) -> Answer | None:
        """Answer once the model's tensors are known: only then can a body be checked."""
        service, headers = unread.service, unread.headers
        if service.signature is not None or service.on_demand is None:
            return await self._answer(unread)
        caller = service.access.check(headers.get(b"authorization", b""))
        with service.on_demand.lease():
            wait_ns = await service.learn_signature(caller.name)
            service, dialect = self._find(unread.scope, headers)
            answer = await self._answer(unread._replace(service=service, dialect=dialect))
        return None if answer is None else answer._replace(lines=answer.lines + wait_line(wait_ns))

    async def _answer(self, unread: UnreadRequest) -> Answer | None:
        """Check the request before its body is read, then score; None if the caller has been answered or has gone."""
        service, dialect, scope = unread.service, unread.dialect, unread.scope
        ids, options = RequestIds(*sent_ids(unread.headers)), self._options(unread)
        self._check(service)
        inflater = inflater_for(content_encodings(scope))
        with allowance_of(self._gateway, unread) as allowance:
            body = await read_body(unread, inflater, allowance)
            if body is None:
                return None
            needs_head = dialect is None and service.dialect.wants_head
            head = request_head(scope, None if inflater is None else len(body)) if needs_head else None
            request = ScoringRequest(body, ids, head, time.monotonic_ns(), dialect, options)
            return await self._score(unread, request)

    def _check(self, service: Service) -> None:
        """Refuse an authorized request to a service that cannot answer it; overridden where there are such."""

    async def _score(self, unread: UnreadRequest, request: ScoringRequest) -> Answer | None:
        """Score a request whose body has been read; None if the caller has been answered or has gone."""
        return await score_and_wait(unread.service, request, unread.receive)

    async def _keep(self, unread: UnreadRequest, later: Later) -> Answer | None:
        """Keep a request that is answered later; its content is checked then."""
        service, scope, headers = unread.service, unread.scope, unread.headers
        caller = service.access.check(headers.get(b"authorization", b""))
        read_call_options(caller, headers, scope["headers"])
        ticket = later.prepare(service, caller, scope, headers)
        with allowance_of(self._gateway, unread) as allowance:
            body = await read_body(unread, None, allowance)
            return None if body is None else await later.keep(ticket, body)

    def _options(self, unread: UnreadRequest) -> CallOptions | None:
        headers, pairs = unread.headers, unread.scope["headers"]
        caller = unread.service.access.check(headers.get(b"authorization", b""))
        return read_call_options(caller, headers, pairs, trusts_proxy=self._gateway.settings.trusts_proxy)

    async def _finish(self, answer: Answer, headers: Mapping[bytes, bytes]) -> Answer:
        """Return the answer as it is sent: compressed, if the caller accepts that."""
        accepted = headers.get(b"accept-encoding", b"")
        if self._compress is None or not accepted or answer.status != OK:
            # Clients of these protocols read errors uncompressed.
            return answer
        body, line = await self._compress(answer.body, accepted)
        answer = with_body(answer, body)
        return answer._replace(lines=answer.lines + line)


def check_posted(scope: Scope) -> None:
    """Refuse other methods than POST."""
    if scope["method"] != "POST":
        raise MethodNotAllowed("Method Not Allowed", allowed=("POST",))


def find_service(gateway: Gateway, scope: Scope, headers: Mapping[bytes, bytes]) -> Service:
    """Find the service for a request whose path may name a model, by weight if the model's requests are split."""
    directory, name = gateway.directory, scope["path_params"].get("name")
    service = directory.deployment(headers, scope["path"]) if name is None else directory.service(name)
    return directory.choose_version(service, headers)


def with_body(answer: Answer, body: bytes) -> Answer:
    """Replace the body of an answer."""
    length = b"content-length: %d\r\n"
    return Answer(answer.status, answer.lines.replace(length % len(answer.body), length % len(body)), body)


def with_deployment(answer: Answer, service: Service | None, gateway: Gateway) -> Answer:
    """Add the name of the deployment to an answer, if the request's path names no model."""
    if service is None or gateway.directory.traffic is None or gateway.directory.traffic.undivided:
        return answer
    line = b"%b: %b\r\n" % (DEPLOYMENT_HEADER, service.name.encode())
    return answer._replace(lines=answer.lines + line)


def allowance_of(gateway: Gateway, unread: UnreadRequest) -> Allowance:
    """Return the allowance of an authorized request from the budget for large bodies."""

    def find_caller() -> Caller:
        client, authorization = unread.scope.get("client"), unread.headers.get(b"authorization", b"")
        return identify_caller(unread.service, authorization, client[0] if client else "")

    return Allowance(gateway.bodies, find_caller)


async def read_body(unread: UnreadRequest, inflater: Inflater | None, allowance: Allowance) -> bytes | None:
    """Return the body within the limit and the allowance, inflated; None if the caller has gone."""
    length = content_length(unread.headers)
    if length > unread.service.limits.max_body_bytes:
        raise unread.service.too_large()
    allowance.announce(length)
    return await receive_body(unread.receive, unread.service, inflater, allowance)


async def receive_body(
    receive: Receive, service: Service, inflater: Inflater | None, allowance: Allowance
) -> bytes | None:
    """Return the whole body, inflated if it came compressed; None if the caller went away."""
    # Unlike joining pieces, this never holds the content twice.
    body = io.BytesIO()

    def keep(piece: bytes) -> None:
        size_bytes = body.tell() + len(piece)
        if size_bytes > service.limits.max_body_bytes:
            raise service.too_large()
        allowance.cover(size_bytes)
        body.write(piece)

    service.staging.arriving += 1
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            if inflater is None:
                keep(chunk)
            else:
                for piece in inflater.feed(chunk):
                    keep(piece)
                    if len(piece) in (0, PIECE_BYTES):
                        # A small compressed chunk can inflate to very much: other requests get their turn in
                        # between.
                        await asyncio.sleep(0)
            if not message.get("more_body", False):
                if inflater is not None:
                    inflater.finish()
                return body.getvalue()
    finally:
        service.staging.arriving -= 1


def begin_scoring(service: Service, request: ScoringRequest) -> tuple[Call, asyncio.Future[Answer]]:
    """Start scoring; returns the call and a future of its answer. The call has to be abandoned in the end."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def respond(status: int, lines: bytes, body: bytes) -> None:
        if not answered.done():
            answered.set_result(Answer(status, lines, body))

    call = service.score(
        request.body,
        request.ids,
        respond,
        request.received_ns,
        request.head,
        request.dialect,
        request.options,
    )
    return call, answered


async def score_and_wait(
    service: Service,
    request: ScoringRequest,
    receive: Receive,
    on_submitted: Callable[[], None] | None = None,
) -> Answer | None:
    """Score and wait for the answer; None if the caller has gone. `on_submitted` is called after the submission."""
    call, answered = begin_scoring(service, request)
    if on_submitted is not None:
        on_submitted()
    if answered.done():
        return answered.result()
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((answered, gone), return_when=asyncio.FIRST_COMPLETED)
        return answered.result() if answered.done() else None
    finally:
        gone.cancel()
        call.abandon()


async def disconnected(receive: Receive) -> None:
    """Return when the caller of a request whose body has arrived disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
