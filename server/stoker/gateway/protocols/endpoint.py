"""What the endpoints of all protocols share: a request's checks, its body, its answer, its refusal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from starlette.types import Message, Receive, Scope, Send

from stoker.errors import StokerError
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.answers import (
    CLOSE_LINE,
    code_line,
    error_body,
    error_lines,
    json_lines,
    split_lines,
)
from stoker.gateway.http.bodies import content_length, receive_body
from stoker.gateway.http.body_budget import Allowance
from stoker.gateway.http.encodings import Inflater, inflater_for
from stoker.gateway.http.request_ids import RequestIds, refusal_id_lines, sent_ids
from stoker.gateway.scoring.service import Service
from stoker.gateway.traffic import DEPLOYMENT_HEADER
from stoker.wire.envelope import RequestHead

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Dialect

__all__ = [
    "Answer",
    "Content",
    "DialectEndpoint",
    "authorize",
    "header_values",
    "received",
    "refusal",
    "request_head",
    "score_content",
    "send_answer",
    "signed",
]

_SHORT_BODY_BYTES: Final = 1 << 16
_OK: Final = 200


class Answer(NamedTuple):
    """Status, header lines and body."""

    status: int
    lines: bytes
    body: bytes


class Content(NamedTuple):
    """What `Service.score` takes."""

    body: bytes
    ids: RequestIds
    head: RequestHead | None
    received_ns: int
    dialect: Dialect | None = None


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
                answer = signed(answer, service, self._gateway)
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
        authorize(service, headers)
        inflater = inflater_for(header_values(scope, b"content-encoding"))
        with Allowance(self._gateway.bodies) as allowance:
            body = await received(service, headers, receive, inflater, allowance)
            if body is None:
                return None
            wanted = dialect is None and service.dialect.wants_head
            head = request_head(scope, None if inflater is None else len(body)) if wanted else None
            content = Content(body, ids, head, time.monotonic_ns(), dialect)
            return await score_content(service, content, receive)

    async def _shrunk(self, answer: Answer, accepted: bytes) -> Answer:
        if self._compress is None or not accepted or answer.status != _OK:
            # Clients of these protocols read errors as they are.
            return answer
        body, line = await self._compress(answer.body, accepted)
        lines = answer.lines.replace(
            b"content-length: %d\r\n" % len(answer.body), b"content-length: %d\r\n" % len(body)
        )
        return Answer(answer.status, lines + line, body)


def signed(answer: Answer, service: Service | None, gateway: Gateway) -> Answer:
    """The answer to a request to an endpoint, with the name of the deployment."""
    if service is None or gateway.traffic is None or gateway.traffic.undivided:
        return answer
    line = b"%b: %b\r\n" % (DEPLOYMENT_HEADER, service.name.encode())
    return answer._replace(lines=answer.lines + line)


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header, in order."""
    return [value for given, value in scope["headers"] if given == name]


def authorize(service: Service, headers: Mapping[bytes, bytes]) -> None:
    """Raise Unauthorized where a request has no valid key or token."""
    service.access.check(headers.get(b"authorization", b""))


async def received(
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


async def score_content(
    service: Service, content: Content, receive: Receive, on_submitted: Callable[[], None] | None = None
) -> Answer | None:
    """Score and wait for the answer; None if the caller went away. `on_submitted` is called once it is under way."""
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


def request_head(scope: Scope, inflated_bytes: int | None) -> RequestHead:
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
