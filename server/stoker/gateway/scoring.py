"""The scoring endpoint of the app: every method, script forms that want the head, compressed and chunked bodies.

It shares the core and the bytes of its answers with the direct door.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from starlette.types import Message, Receive, Scope, Send

from stoker.errors import MethodNotAllowed, StokerError
from stoker.gateway.answers import (
    CLOSE_LINE,
    code_line,
    error_body,
    error_lines,
    failed_line,
    json_lines,
    split_lines,
)
from stoker.gateway.binary_dialect import BinaryDialect
from stoker.gateway.bodies import Allowance, content_length, receive_body
from stoker.gateway.cors import is_preflight
from stoker.gateway.direct import LARGE_BODY_BYTES
from stoker.gateway.encodings import Inflater, inflater_for
from stoker.gateway.gateway import Gateway
from stoker.gateway.heads import NOT_ALLOWED, SCORING_METHODS
from stoker.gateway.query import query_body
from stoker.gateway.request_ids import RequestIds, refusal_id_lines, sent_ids
from stoker.gateway.service import Service
from stoker.gateway.traffic import DEPLOYMENT_HEADER
from stoker.wire.envelope import RequestHead

if TYPE_CHECKING:
    from stoker.gateway.dialect import Dialect

__all__ = ["Answer", "DialectEndpoint", "ScoringEndpoint", "refusal", "send_answer"]

_METHODS_WITHOUT_HEAD: Final = ("GET", "OPTIONS", "POST")
_SHORT_BODY_BYTES: Final = 1 << 16
_OK: Final = 200
_EMPTY_LINES: Final = b"content-type: text/html; charset=utf-8\r\ncontent-length: 0\r\n"


class Answer(NamedTuple):
    """Status, header lines and body."""

    status: int
    lines: bytes
    body: bytes


class _Content(NamedTuple):
    """What `Service.score` takes."""

    body: bytes
    ids: RequestIds
    head: RequestHead | None
    received_ns: int
    dialect: Dialect | None = None


class ScoringEndpoint:
    """Scoring as a raw ASGI endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        name = scope["path_params"].get("name")
        service = None
        try:
            service = self._gateway.deployment(headers) if name is None else self._gateway.service(name)
            answer = await self._answer(service, scope, headers, receive)
        except StokerError as error:
            if service is not None:
                service.count_refusal(error)
            answer = refusal(error, headers)
        if answer is None:
            return
        if name is None:
            answer = _signed(answer, service, self._gateway)
        await send_answer(send, answer)

    async def _answer(
        self, service: Service, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> Answer | None:
        """Check what can be checked before the body is read, then score; None if the caller went away."""
        method, raw = scope["method"], _is_raw(service)
        if method not in SCORING_METHODS:
            raise MethodNotAllowed(NOT_ALLOWED, allowed=SCORING_METHODS)
        ids = RequestIds(*sent_ids(headers))
        if method == "OPTIONS" and (not raw or (self._gateway.cors and is_preflight(method, headers))):
            return Answer(200, _EMPTY_LINES + ids.lines + failed_line(False), b"")
        if method == "HEAD" and not raw:
            raise MethodNotAllowed("Method not allowed", allowed=_METHODS_WITHOUT_HEAD)
        _authorize(service, headers)
        service.check_media(headers.get(b"content-type", b""))
        # A script that gets the request itself gets its body as it came.
        inflater = None if raw else inflater_for(_values(scope, b"content-encoding"))
        with Allowance(self._gateway) as allowance:
            body = await _received(service, headers, receive, inflater, allowance)
            if body is None:
                return None
            received_ns = time.monotonic_ns()
            head = _head(scope, None if inflater is None else len(body)) if service.wants_head else None
            dialect = BinaryDialect.of(service, headers) if method == "POST" else None
            if method == "GET" and not raw:
                body = query_body(scope["query_string"])
            content = _Content(body, ids, head, received_ns, dialect)
            copy = self._gateway.mirror(headers) if method == "POST" and not scope["path_params"] else None
            if copy is None or (inflater is None and b"content-encoding" in headers):
                return await _score(service, content, receive)
            head = _head(scope, None if inflater is None else len(body)) if copy.wants_head else None
            copied = content._replace(head=head)
            return await _score(service, content, receive, lambda: _score_copy(copy, copied, headers))


class DialectEndpoint:
    """Scoring by another protocol as a raw ASGI endpoint."""

    def __init__(
        self,
        gateway: Gateway,
        find: Callable[[Scope, Mapping[bytes, bytes]], tuple[Service, Dialect | None]],
        refuse: Callable[[StokerError], tuple[int, bytes]],
        compress: Callable[[bytes, bytes], Awaitable[tuple[bytes, bytes]]] | None = None,
        *,
        signs: bool = False,
    ) -> None:
        """Make the endpoint.

        Args:
            gateway: The frontend's services.
            find: Finds service and dialect of a request, given its scope and headers; without a dialect its body is
                scored as it is.
            refuse: Status and body of an error in this protocol.
            compress: Compresses a body as `Accept-Encoding` asks; returns it with the header line that says so.
            signs: Whether answers of an endpoint name the deployment that has given them.
        """
        self._gateway = gateway
        self._find = find
        self._refuse = refuse
        self._compress = compress
        self._signs = signs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        service = None
        try:
            service, dialect = self._find(scope, headers)
            answer = await self._answer(service, dialect, scope, headers, receive)
        except StokerError as error:
            if service is not None:
                service.count_refusal(error)
            answer = refusal(error, headers, *self._refuse(error))
        if answer is not None:
            if self._signs:
                answer = _signed(answer, service, self._gateway)
            await send_answer(send, await self._shrunk(answer, headers.get(b"accept-encoding", b"")))

    async def _answer(
        self,
        service: Service,
        dialect: Dialect | None,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> Answer | None:
        ids = RequestIds(*sent_ids(headers))
        _authorize(service, headers)
        inflater = inflater_for(_values(scope, b"content-encoding"))
        with Allowance(self._gateway) as allowance:
            body = await _received(service, headers, receive, inflater, allowance)
            if body is None:
                return None
            wanted = dialect is None and service.wants_head
            head = _head(scope, None if inflater is None else len(body)) if wanted else None
            content = _Content(body, ids, head, time.monotonic_ns(), dialect)
            return await _score(service, content, receive)

    async def _shrunk(self, answer: Answer, accepted: bytes) -> Answer:
        if self._compress is None or not accepted or answer.status != _OK:
            # Clients of these protocols read errors as they are.
            return answer
        body, line = await self._compress(answer.body, accepted)
        lines = answer.lines.replace(
            b"content-length: %d\r\n" % len(answer.body), b"content-length: %d\r\n" % len(body)
        )
        return Answer(answer.status, lines + line, body)


def _signed(answer: Answer, service: Service | None, gateway: Gateway) -> Answer:
    """The answer to a request to an endpoint, with the name of the deployment."""
    if service is None or gateway.traffic is None or gateway.traffic.undivided:
        return answer
    line = b"%b: %b\r\n" % (DEPLOYMENT_HEADER, service.name.encode())
    return answer._replace(lines=answer.lines + line)


def _is_raw(service: Service) -> bool:
    return service.script is not None and service.script.kind == "raw"


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for given, value in scope["headers"] if given == name]


def _authorize(service: Service, headers: Mapping[bytes, bytes]) -> None:
    authorization = headers.get(b"authorization", b"")
    if not service.authorized(authorization):
        raise service.unauthorized(authorization)


async def _received(
    service: Service,
    headers: Mapping[bytes, bytes],
    receive: Receive,
    inflater: Inflater | None,
    allowance: Allowance,
) -> bytes | None:
    """The whole body within the limit and the allowance, inflated; None if the caller went away."""
    length = content_length(headers)
    if length > service.max_body_bytes:
        raise service.too_large()
    allowance.cover(length)
    return await receive_body(receive, service, inflater, allowance)


async def _score(
    service: Service, content: _Content, receive: Receive, on_submitted: Callable[[], None] | None = None
) -> Answer | None:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def respond(status: int, lines: bytes, body: bytes) -> None:
        if not answered.done():
            answered.set_result(Answer(status, lines, body))

    call = service.score(
        content.body, content.ids, respond, content.received_ns, content.head, content.dialect
    )
    if on_submitted is not None:
        on_submitted()
    if answered.done():
        return answered.result()
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((answered, gone), return_when=asyncio.FIRST_COMPLETED)
        return answered.result() if answered.done() else None
    finally:
        gone.cancel()
        call.abandon()


def _score_copy(service: Service, content: _Content, headers: Mapping[bytes, bytes]) -> None:
    """Score a request again for nobody: its answer goes nowhere, and what fails is counted alone."""
    # The budget of large bodies holds one only until its own request is answered, and a copy may wait longer.
    if not service.ready or len(content.body) > LARGE_BODY_BYTES:
        return
    try:
        service.check_media(headers.get(b"content-type", b""))
        dialect = BinaryDialect.of(service, headers)
        service.score(content.body, content.ids, _nobody, content.received_ns, content.head, dialect)
    except StokerError as error:
        service.count_refusal(error)


def _nobody(status: int, lines: bytes, body: bytes) -> None:
    """Take the answer to a copy of a request."""


def _head(scope: Scope, inflated_bytes: int | None) -> RequestHead:
    """What a script may see of a request; where its body was inflated, as if it had come so."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    if inflated_bytes is not None:
        framing = ("content-encoding", "content-length", "transfer-encoding")
        pairs = [pair for pair in pairs if pair[0] not in framing]
        pairs.append(("content-length", str(inflated_bytes)))
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    remote = scope.get("client")
    return RequestHead(
        scope["method"],
        path.decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        pairs,
        remote[0] if remote else "",
    )


def refusal(
    error: StokerError, headers: Mapping[bytes, bytes], status: int | None = None, body: bytes | None = None
) -> Answer:
    """Return the answer to a request whose body is not read, with these headers; in Azure's shape by default."""
    foreign = body is not None
    if body is None:
        body = error_body(error)
    lines = json_lines(body) + refusal_id_lines(sent_ids(headers)) + error_lines(error)
    if foreign:
        lines += code_line(error)
    length = content_length(headers)
    nothing_follows = length <= 0 and b"transfer-encoding" not in headers
    if not nothing_follows and (b"expect" in headers or not 0 <= length <= _SHORT_BODY_BYTES):
        # Rather end the connection than receive a long body for nothing. A client that has asked whether it
        # may send its body may not send it now.
        lines += CLOSE_LINE
    return Answer(status or error.status, lines, body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_answer(send: Send, answer: Answer) -> None:
    """Send an answer by ASGI."""
    start: Message = {
        "type": "http.response.start",
        "status": answer.status,
        "headers": split_lines(answer.lines),
    }
    await send(start)
    content: dict[str, Any] = {"type": "http.response.body", "body": answer.body}
    await send(content)
